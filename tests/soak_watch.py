"""Looks at a soak's processes once a second: a table while it runs, and whether their memory has grown."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis import Redis
from soak_stack import Faults, Stack

EVERY_S = 1.0
ROWS = 20  # of the table
MOST_GROWTH = 0.05
SHORTEST_TO_JUDGE = 5000  # jobs; before that caches are still being filled


@dataclass(frozen=True)
class Sample:
    """`jobs`: how many are done."""

    jobs: int
    api_mb: float
    worker_mb: float


class Watch:
    """Of a soak of `count` jobs. `done` tells how many of them are done."""

    def __init__(self, stack: Stack, faults: Faults, redis: Redis, count: int, done: Callable[[], int]) -> None:
        self._stack, self._faults, self._redis, self._count, self._done = stack, faults, redis, count, done
        self._samples: list[Sample] = []

    async def run(self) -> None:
        """Until cancelled."""
        print("jobs done   seconds   API MiB   worker MiB    keys   faults")
        began, rows = time.monotonic(), 0
        while True:
            async with self._stack.calm:
                keys = int(self._redis.dbsize())  # type: ignore[arg-type]
            sample = Sample(self._done(), *self._stack.resident_mb())
            self._samples.append(sample)
            if sample.jobs >= rows * self._count / ROWS:
                rows = sample.jobs * ROWS // self._count + 1
                print(
                    f"{sample.jobs:9,}   {time.monotonic() - began:7.0f}   {sample.api_mb:7.1f}   "
                    f"{sample.worker_mb:10.1f}   {keys:5,}   {self._faults.counts.total():6}",
                    flush=True,
                )
            await asyncio.sleep(EVERY_S)

    def grown(self) -> list[str]:
        """Whose memory grew over the last half of the jobs; prints by how much."""
        last_half = [sample for sample in self._samples if 2 * sample.jobs >= self._count]
        tenth = max(1, len(last_half) // 10)
        found = []
        for name, of in (("API", lambda sample: sample.api_mb), ("worker", lambda sample: sample.worker_mb)):
            first, last = (statistics.median(map(of, some)) for some in (last_half[:tenth], last_half[-tenth:]))
            growth = last / first - 1
            print(f"memory of the {name} over the last half: {first:.1f} to {last:.1f} MiB, {growth:+.1%}")
            if growth >= MOST_GROWTH and self._count >= SHORTEST_TO_JUDGE:
                found.append(f"the {name}'s memory grew by {growth:.1%}")
        return found
