"""Every job that ends counts once, and every attempt counts once, under what became of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from queue_client import Client
from redis import Redis
from scripted import Scripted

from worker import keys, metrics
from worker.batch_worker import BatchWorker
from worker.executions import CRASHES_ALLOWED

Drain = Callable[..., BatchWorker]


def totals() -> Counter[str]:
    found: Counter[str] = Counter()
    for name, label, values in (
        ("job_attempts_total", "outcome", metrics.OUTCOMES),
        ("jobs_finished_total", "status", metrics.STATUSES),
    ):
        for value in values:
            labels = {label: value} | ({"preset": "custom"} if label == "status" else {})
            found[f"{label} {value}"] = int(metrics.REGISTRY.get_sample_value(f"fieldcast_{name}", labels) or 0)
    return found


@pytest.fixture
def counted() -> Callable[[], dict[str, int]]:
    before = totals()
    return lambda: {name: n for name, n in (totals() - before).items() if n}


def test_completed_failed_and_timed_out(client: Client, drain: Drain, counted: Callable[[], dict[str, int]]) -> None:
    client.submit_all(["fine", "fine", "raise"])
    client.submit("sleep 60", timeout_s=1)
    drain()
    assert counted() == {
        "outcome completed": 2,
        "outcome failed": 1,
        "outcome timed_out": 1,
        "status completed": 2,
        "status failed": 2,
    }


def test_a_run_that_was_cancelled_and_a_run_that_was_lost(
    redis: Redis, client: Client, drain: Drain, counted: Callable[[], dict[str, int]]
) -> None:
    unwanted, overtaken = client.submit_all(["unwanted", "overtaken"])

    class Interfered(Scripted):
        def answer(self, questions: Sequence[object]) -> list[object]:  # type: ignore[override]
            thread = threading.Thread(target=client.cancel, args=[unwanted])
            thread.start()
            thread.join()
            redis.hset(keys.job(overtaken.id), "worker_name", "another.worker")
            return super().answer(questions)  # type: ignore[arg-type, return-value]

    drain(Interfered())
    assert counted() == {"outcome cancelled": 1, "outcome lost": 1}


def test_jobs_of_a_crash_and_a_quarantined_one(
    redis: Redis,
    client: Client,
    drain: Drain,
    new_worker: Callable[..., BatchWorker],
    counted: Callable[[], dict[str, int]],
) -> None:
    again, given_up = client.submit_all(["fine", "fine too"])
    crashed = new_worker()
    crashed._transactions.start(crashed._claims.take())  # and then nothing more was heard of it
    redis.hset(keys.CRASHES, given_up.id, CRASHES_ALLOWED)
    for entry in redis.zrange(keys.STARTED, 0, -1):
        redis.zadd(keys.STARTED, {entry: time.time() - 1})
    drain()
    assert client.status(again) == "completed"
    assert client.fetch(given_up).error["type"] == "quarantined"  # type: ignore[index]
    assert counted() == {"outcome lost": 2, "outcome completed": 1, "status completed": 1, "status failed": 1}
