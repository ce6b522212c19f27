"""Two workers on one queue share it, and whichever is killed, whenever, every job ends exactly once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from job_history import ended_once
from queue_client import Client, Part, until
from redis import Redis

from worker import keys
from worker.job_record import Job

StartWorker = Callable[..., Part]
QUICK = {"lease_s": 2, "heartbeat_s": 0.3, "batch_rows": 4}


def test_they_share_the_work(redis: Redis, client: Client, start_worker: StartWorker) -> None:
    parts = [start_worker(slot=slot, **QUICK) for slot in "ab"]
    for slot in "ab":
        until(lambda slot=slot: redis.exists(keys.worker(slot)))
    jobs = client.submit_all([f"sleep 0.05 {number}" for number in range(40)])
    ended_once(redis, client, jobs)
    answered = [context for part in parts for call in part.calls for context in call]
    assert sorted(answered) == sorted(f"sleep 0.05 {number}" for number in range(40))
    assert all(part.calls for part in parts)


def test_kills_at_random_moments(seed: int, redis: Redis, client: Client, start_worker: StartWorker) -> None:
    chance = random.Random(seed)
    parts = {slot: start_worker(slot=slot, **QUICK) for slot in "ab"}
    jobs: list[Job] = []
    for kill in range(8):
        jobs += client.submit_all([f"sleep {chance.choice([0, 0.05])} {kill}.{number % 5}" for number in range(20)])
        time.sleep(chance.uniform(0, 1.2))
        slot = chance.choice("ab")
        parts[slot].process.kill()
        parts[slot].process.wait()
        parts[slot] = start_worker(slot=slot, **QUICK)
    for job in ended_once(redis, client, jobs):
        assert job.status == "completed" or (job.error is not None and job.error["type"] == "quarantined"), job
