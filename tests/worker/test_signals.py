"""SIGTERM lets the running batch end and leaves the rest in the queue; a second one gives the batch back too."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from queue_client import Client, Part, ids_in, queued_ids, until
from redis import Redis

from worker import keys

StartWorker = Callable[..., Part]
RQ_IGNORES_S = 1.2  # RQ takes two signals within a second for one


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_running_batch_ends_and_the_rest_stays_queued(
    number: signal.Signals, redis: Redis, client: Client, start_worker: StartWorker, gate: Path
) -> None:
    batch = client.submit_all([f"hold {gate}"] * 2)
    rest = client.submit_all(["fine", "fine too"])
    part = start_worker(batch_rows=2)
    until(lambda: client.status(batch[1]) == "in_progress")
    part.process.send_signal(number)
    gate.touch()
    assert part.process.wait(90) == 0
    assert [client.fetch(job).status for job in batch] == ["completed", "completed"]
    assert queued_ids(redis) == [job.id for job in rest]
    assert [client.fetch(job).status for job in rest] == ["queued", "queued"]
    for key in (keys.STARTED, keys.claimed("mac"), keys.owner("mac"), keys.worker("mac")):
        assert not redis.exists(key), key


def test_a_second_signal_gives_running_jobs_back_to_the_front_in_order(
    redis: Redis, client: Client, start_worker: StartWorker, gate: Path
) -> None:
    batch = client.submit_all([f"hold {gate}"] * 3)
    rest = client.submit("fine")
    part = start_worker(batch_rows=3)
    until(lambda: client.status(batch[2]) == "in_progress")
    part.process.send_signal(signal.SIGTERM)
    time.sleep(RQ_IGNORES_S)
    part.process.send_signal(signal.SIGTERM)
    assert part.process.wait(90) == 0
    assert queued_ids(redis) == [job.id for job in [*batch, rest]]
    assert [client.fetch(job).status for job in batch] == ["queued"] * 3
    assert ids_in(redis, keys.STARTED) == []
    assert redis.hlen(keys.CRASHES) == 0  # it was no crash
    gate.touch()
    start_worker()
    ended = client.until_ended([*batch, rest])
    assert [job.status for job in ended] == ["completed"] * 4
    assert [job.attempts for job in ended] == [2, 2, 2, 1]
    assert [redis.xlen(keys.results(job.id)) for job in ended] == [1] * 4


def test_an_idle_worker_ends_at_once_and_lets_its_slot_go(redis: Redis, start_worker: StartWorker) -> None:
    part = start_worker()
    until(lambda: redis.exists(keys.worker("mac")))
    part.process.send_signal(signal.SIGTERM)
    assert part.process.wait(90) == 0
    assert not redis.exists(keys.owner("mac"))


def test_a_worker_that_waits_for_its_slot_ends_when_told_to(redis: Redis, start_worker: StartWorker) -> None:
    redis.set(keys.owner("mac"), "another host|1|its worker")
    part = start_worker()
    until(lambda: "waiting for the slot" in part.log)
    part.process.send_signal(signal.SIGTERM)
    assert part.process.wait(90) == 0
    assert redis.get(keys.owner("mac")) == b"another host|1|its worker"
