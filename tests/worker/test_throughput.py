"""How fast a worker says it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_client import Client, Part, until

from worker import status
from worker.throughput import WINDOW_S, Throughput


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_is_the_mean_of_the_last_minute() -> None:
    clock = Clock()
    throughput = Throughput(clock)
    assert throughput.per_second() == 0
    clock.now = 10
    throughput.count(5)
    assert throughput.per_second() == 0.5  # since the start
    clock.now = 100
    throughput.count(120)
    assert throughput.per_second() == 120 / WINDOW_S  # the five are too long ago
    clock.now = 200
    assert throughput.per_second() == 0


def test_a_burst_at_the_start_is_not_taken_for_the_rule() -> None:
    clock = Clock()
    throughput = Throughput(clock)
    clock.now = 0.01
    throughput.count(10)
    assert throughput.per_second() == pytest.approx(10)  # and not a thousand


def test_a_worker_publishes_its_own(client: Client, start_worker: Callable[..., Part]) -> None:
    start_worker(heartbeat_s=0.2)
    client.until_ended(client.submit_all(["fine"] * 5))
    [worker] = until(lambda: [w for w in client.call(status.workers) if w.jobs_per_s > 0])
    assert worker.jobs_per_s <= 5
