"""Workers in this process and as processes of their own, and a client of their queue; all against a real server.

The fixtures of several areas: the conftest.py of each imports the ones it offers.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scripted
from queue_client import Client, Held, Part, run_worker, until
from redis import Redis

from worker.batch_worker import BatchWorker
from worker.runner import Answerer
from worker.settings import Settings

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey


@pytest.fixture
def redis(valkey: EmbeddedValkey) -> Iterator[Redis]:
    with Redis.from_url(valkey.url) as connection:
        yield connection


@pytest.fixture
def client(valkey: EmbeddedValkey) -> Client:
    return Client(valkey.url)


@pytest.fixture
def settings_for(valkey: EmbeddedValkey, tmp_path: Path) -> Callable[..., Settings]:
    def make(**changes: Any) -> Settings:
        return Settings(**{"data_dir": tmp_path, "redis_url": valkey.url, "worker_slot": "mac", **changes})

    return make


@pytest.fixture
def new_worker(settings_for: Callable[..., Settings]) -> Iterator[Callable[..., BatchWorker]]:
    """Makes a worker that runs in this process; its signal handlers do not outlive the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    connections: list[Redis] = []

    def make(answerer: Answerer | None = None, slot: str = "mac", **changes: Any) -> BatchWorker:
        settings = settings_for(**changes)
        connections.append(Redis.from_url(settings.connection_url, socket_timeout=None))
        return BatchWorker(connections[-1], settings, answerer or scripted.Scripted(), slot, {"model": "scripted"})

    yield make
    for connection in connections:
        connection.close()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def drain(new_worker: Callable[..., BatchWorker]) -> Callable[..., BatchWorker]:
    """Has a worker in this process answer what is queued, until nothing is."""

    def run(answerer: Answerer | None = None, **changes: Any) -> BatchWorker:
        worker = new_worker(answerer, **changes)
        worker.work(burst=True, logging_level="WARNING")
        return worker

    return run


@pytest.fixture
def held(client: Client, start_worker: Callable[..., Part], tmp_path: Path) -> Held:
    """Two jobs that a worker process has in hand until they are released."""
    gate = tmp_path / "gate"
    first, second = client.submit_all([f"hold {gate}", "fine"])
    part = start_worker()
    until(lambda: client.status(second) == "in_progress")
    return Held(first, second, part, gate.touch)


@pytest.fixture
def start_worker(valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[Callable[..., Part]]:
    """Starts a worker of its own process with a scripted answerer, to be killed at a point if one is given; ends what
    still runs."""
    started: list[Part] = []

    def start(dies_when: str = "", slot: str = "mac", **settings: Any) -> Part:
        given = {"redis_url": valkey.url, "data_dir": tmp_path, "worker_slot": slot, **settings}
        started.append(run_worker(tmp_path, f"{len(started)}", dies_when, **given))
        return started[-1]

    yield start
    for part in started:
        part.process.kill()
        part.process.wait()
