"""How fast a worker answers, for those who must say how long a wait will be. Imports nothing of ours."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0


class Throughput:
    """Jobs ended per second, over the last WINDOW_S or since the first of them. One thread counts, another may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_at = clock()
        self._ends: deque[tuple[float, int]] = deque()

    def count(self, jobs: int) -> None:
        """`jobs` ended just now."""
        self._ends.append((self._clock(), jobs))
        while self._ends[0][0] < self._clock() - WINDOW_S:
            self._ends.popleft()

    def per_second(self) -> float:
        """0 when nothing ended in the window."""
        now = self._clock()
        ended = sum(jobs for at, jobs in tuple(self._ends) if at >= now - WINDOW_S)
        return ended / max(1.0, min(WINDOW_S, now - self._started_at))
