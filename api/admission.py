"""Backpressure: whether another job may wait. From worker: the queue's depth and the workers' speed.

The queue is looked at once a second at most, and jobs admitted since are added to what was seen; so a submission costs
no further round trip, and several API processes together may overshoot a limit by a second's jobs.
"""

from __future__ import annotations

import math
import time

from redis.asyncio import Redis

from api.problems import ProblemError
from worker.settings import Settings
from worker.status import queue_load

LOOK_EVERY_S = 1.0
FREE_SHARE = 0.1  # of the queue's places are to be free when clients come back
UNKNOWN_WAIT_S = 30
LONGEST_WAIT_S = 300


class Admission:
    """Refuses jobs while `queue_max_jobs` wait or Redis holds `queue_max_mb`."""

    def __init__(self, settings: Settings) -> None:
        self._max_jobs = settings.queue_max_jobs
        self._max_bytes = settings.queue_max_mb * 2**20
        self._looked_at = -math.inf
        self._queued = self._bytes = 0
        self._jobs_per_s = 0.0

    async def admit(self, redis: Redis) -> None:
        """Takes a place for one job. Raises a 429 `ProblemError` that says when to come back."""
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S or self._full():
            load = await queue_load(redis)
            self._queued, self._bytes, self._jobs_per_s = load.queued, load.memory_bytes, load.jobs_per_s
            self._looked_at = time.monotonic()
        if self._full():
            what = (
                f"{self._queued} jobs wait" if self._queued >= self._max_jobs else "the job store's memory is used up"
            )
            wait = {"Retry-After": str(self._wait_s())}
            raise ProblemError(429, "queue_full", f"{what}; try again later", headers=wait)
        self._queued += 1

    def _full(self) -> bool:
        return self._queued >= self._max_jobs or self._bytes >= self._max_bytes

    def _wait_s(self) -> int:
        """Seconds until a share of the places is free, at the speed of the last minute."""
        surplus = self._queued - (1 - FREE_SHARE) * self._max_jobs
        if surplus <= 0 or self._jobs_per_s == 0:
            return UNKNOWN_WAIT_S
        return max(1, min(LONGEST_WAIT_S, math.ceil(surplus / self._jobs_per_s)))
