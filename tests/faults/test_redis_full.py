"""Redis has used up its memory: nothing new comes in, and what is there is answered, ended and removed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from job_history import ended_once
from queue_client import Client, Part, until
from redis import Redis
from redis.exceptions import OutOfMemoryError

from worker import jobs, keys


def fill(redis: Redis) -> None:
    redis.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        redis.set("one more", "word")


def test_running_and_waiting_jobs_end_and_the_lease_is_kept(
    redis: Redis, client: Client, start_worker: Callable[..., Part], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    submitted = client.submit_all([f"hold {gate}", "fine", "raise", *["fine too"] * 5])
    worker = start_worker(batch_rows=3, lease_s=2, heartbeat_s=0.3)
    until(lambda: client.status(submitted[0]) == "in_progress")
    fill(redis)
    with pytest.raises(OutOfMemoryError):
        client.submit("one more")
    owner = redis.get(keys.owner("mac"))
    time.sleep(3)  # longer than the lease
    assert redis.get(keys.owner("mac")) == owner
    gate.touch()
    ended = client.until_ended(submitted)
    assert [job.status for job in ended] == ["completed", "completed", "failed", *["completed"] * 5]
    assert [job.attempts for job in ended] == [1] * 8
    assert worker.process.poll() is None


def test_an_idle_worker_waits_for_room(redis: Redis, client: Client, start_worker: Callable[..., Part]) -> None:
    worker = start_worker()
    until(lambda: redis.exists(keys.worker("mac")))
    fill(redis)
    time.sleep(2)
    redis.config_set("maxmemory", 0)
    [job] = client.until_ended([client.submit("fine")])
    assert job.status == "completed"
    assert worker.process.poll() is None


def test_jobs_can_be_cancelled_and_deleted(redis: Redis, client: Client) -> None:
    unwanted, private = client.submit_all(["unwanted", "private"])
    fill(redis)
    assert client.cancel(unwanted).status == "cancelled"
    assert client.call(jobs.delete, private.id) is not None
    assert client.call(jobs.fetch, private.id) is None


def test_a_worker_that_starts_then_ends_what_was_running(
    redis: Redis, client: Client, start_worker: Callable[..., Part], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    submitted = client.submit_all([f"hold {gate}", "fine", "fine too"])
    killed = start_worker(batch_rows=2)
    until(lambda: client.status(submitted[0]) == "in_progress")
    killed.process.kill()
    killed.process.wait()
    fill(redis)
    gate.touch()
    workers = [start_worker(), start_worker(slot="new")]
    assert [job.status for job in ended_once(redis, client, submitted)] == ["completed"] * 3
    for part, slot in zip(workers, ("mac", "new"), strict=True):
        until(lambda slot=slot: redis.exists(keys.worker(slot)))
        assert part.process.poll() is None
    states = [redis.hget(name, "state") for name in redis.smembers("rq:workers")]
    assert states.count(b"idle") >= 2  # RQ's tools see them
