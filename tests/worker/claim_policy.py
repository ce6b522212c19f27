"""The policy of a claim in plain Python: what the Lua of worker/claim.py must do. Imports nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Lane = Literal["interactive", "bulk"]


@dataclass(frozen=True)
class Waiting:
    """A job in the queue. `context` and `schema` are what it costs in tokens; `document` says whose text, too."""

    id: str
    tenant: str
    lane: Lane
    document: str
    context: int
    schema: int
    suspect: bool = False  # it was running when a worker died


@dataclass
class Policy:
    """Limits, and the memory of who was served when."""

    rows: int
    tokens: int
    interactive_share: int
    turn: int = 0
    bypassed: int = 0  # interactive turns since bulk jobs wait
    last_turn: dict[tuple[str, Lane], int] = field(default_factory=lambda: defaultdict(int))

    def claim(self, queue: Sequence[Waiting]) -> list[Waiting]:
        """The next batch from the queue's list: bulk jobs oldest first, before them interactive ones newest first."""
        interactive = [job for job in reversed(queue) if job.lane == "interactive"]
        waiting = interactive + [job for job in queue if job.lane == "bulk"]
        batch: list[Waiting] = []
        spent = 0
        while waiting and len(batch) < self.rows:
            first, passes = self._in_turn(waiting)
            if batch and (first.suspect or spent + first.context + first.schema > self.tokens):
                break
            self.turn += 1
            self.last_turn[first.tenant, first.lane] = self.turn
            self.bypassed = self.bypassed + 1 if passes else 0
            spent += first.context
            for job in self._of_turn(first, waiting):
                if job is first or (len(batch) < self.rows and spent + job.schema <= self.tokens):
                    spent += job.schema
                    batch.append(job)
                    waiting.remove(job)
            if first.suspect:
                break
        return batch

    def _in_turn(self, waiting: Sequence[Waiting]) -> tuple[Waiting, bool]:
        """The first job of the next turn, and whether it passes waiting bulk jobs."""
        by_lane = {lane: [job for job in waiting if job.lane == lane] for lane in ("interactive", "bulk")}
        passes = all(by_lane.values()) and self.bypassed < self.interactive_share
        chosen = by_lane["interactive"] if passes or not by_lane["bulk"] else by_lane["bulk"]
        return min(chosen, key=lambda job: self.last_turn[job.tenant, job.lane]), passes  # of equals the first

    def _of_turn(self, first: Waiting, waiting: Sequence[Waiting]) -> Iterator[Waiting]:
        yield first
        if not first.suspect:
            yield from [job for job in waiting if job.document == first.document and job != first and not job.suspect]
