"""A client of the queue, workers in this process and as processes of their own; all against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from scripted import Scripted

from engine.request import Options
from engine.schema import StructuredSchema
from worker import jobs, keys
from worker.batch_worker import BatchWorker
from worker.jobs import Job, JobSpec
from worker.runner import Answerer
from worker.settings import Settings

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SCHEMA = {"urgent": {"type": "boolean", "description": "Is it urgent?"}}
DEADLINE_S = 90.0  # of waits that end in a second or two on an idle machine
ENDED = ("completed", "failed", "cancelled")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:  # the workers use SIGALRM themselves
            item.add_marker(pytest.mark.timeout(300, method="thread"))


def until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """What `condition` returns once that is true."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)
    return found


def spec(context: str, **changes: Any) -> JobSpec:
    given: dict[str, Any] = {
        "context": context,
        "schema": SCHEMA,
        "preset": None,
        "options": Options(),
        "min_confidence": None,
        "lane": "bulk",
        "timeout_s": 60,
        "result_ttl_s": 3600,
        "metadata": {},
        "webhook": None,
        **changes,
    }
    return JobSpec(**{**given, "schema": StructuredSchema(given["schema"])})


class Client:
    """The functions of worker/jobs.py and worker/status.py, called from a test that is not asynchronous."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def once() -> Any:
            async with AsyncRedis.from_url(self._url) as redis:
                return await function(redis, *args)

        return asyncio.run(once())

    def submit(self, context: str, **changes: Any) -> Job:
        return self.call(jobs.submit, spec(context, **changes))

    def submit_all(self, contexts: Sequence[str], **changes: Any) -> list[Job]:
        async def several(redis: AsyncRedis) -> list[Job]:
            return [await jobs.submit(redis, spec(context, **changes)) for context in contexts]

        return self.call(several)

    def fetch(self, job: Job | str) -> Job:
        found = self.call(jobs.fetch, job if isinstance(job, str) else job.id)
        assert found is not None
        return found

    def cancel(self, job: Job) -> Job:
        return self.call(jobs.cancel, job.id)

    def status(self, job: Job) -> str:
        return self.fetch(job).status

    def until_ended(self, submitted: Sequence[Job]) -> list[Job]:
        """The jobs as they are when all have ended."""

        def all_ended() -> list[Job] | None:
            found = [self.fetch(job) for job in submitted]
            return found if all(job.status in ENDED for job in found) else None

        return until(all_ended)


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
        return BatchWorker(connections[-1], settings, answerer or Scripted(), slot, {"model": "scripted"})

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


@dataclass(frozen=True)
class Part:
    """A worker process. `calls` are the contexts of each call that its answerer got."""

    process: subprocess.Popen[bytes]
    calls_path: Path
    log_path: Path

    @property
    def calls(self) -> list[list[str]]:
        lines = self.calls_path.read_text().splitlines() if self.calls_path.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def log(self) -> str:
        return self.log_path.read_text()


@pytest.fixture
def start_worker(valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[Callable[..., Part]]:
    """Starts a worker of its own process with a scripted answerer; ends what still runs."""
    started: list[Part] = []

    def start(kind: str = "BatchWorker", slot: str = "mac", **settings: Any) -> Part:
        given = {"redis_url": valkey.url, "data_dir": tmp_path, "worker_slot": slot, **settings}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        environment |= {f"FIELDCAST_{name.upper()}": str(value) for name, value in given.items()}
        calls, log = (tmp_path / f"{len(started)}.{suffix}" for suffix in ("calls", "log"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "scripted.py"), kind, str(calls)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started.append(Part(process, calls, log))
        return started[-1]

    yield start
    for part in started:
        part.process.kill()
        part.process.wait()


def ids_in(redis: Redis, key: str) -> list[str]:
    """The ids in a list, or in a sorted set by score."""
    found = redis.lrange(key, 0, -1) if redis.type(key) == b"list" else redis.zrange(key, 0, -1)
    return [raw.decode() for raw in found]


def queued_ids(redis: Redis) -> list[str]:
    return ids_in(redis, keys.QUEUE_LIST)
