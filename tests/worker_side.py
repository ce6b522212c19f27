"""One worker's view of the queue, step by step, without a process: what it claims, starts and ends."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redis import Redis
from rq.serializers import JSONSerializer

from worker import keys
from worker.batch_worker import FieldcastJob
from worker.claim import Claims
from worker.executions import Executions
from worker.running import Ended, Running

LEASE_S = 30


class Side:
    """The worker named `name` in `slot`. Keyword arguments are the limits of its claims."""

    def __init__(self, redis: Redis, slot: str, name: str = "", **limits: int) -> None:
        self.name = name or f"{slot}.name"
        given = {"rows": 32, "tokens": 6000, "window": 100, "interactive_share": 3, **limits}
        self.claims = Claims(redis, slot, self.name, **given)
        self.executions = Executions(redis, FieldcastJob, JSONSerializer, slot, self.name, LEASE_S)

    def start(self) -> list[Running]:
        return self.executions.start(self.claims.take())

    def finish(self, running: Sequence[Running], text: str) -> list[str]:
        return list(self.executions.finish([Ended(entry, "completed", {"result": {"by": text}}) for entry in running]))


def expire_leases(redis: Redis, only: Sequence[str] = ()) -> None:
    """Let the time of every running job's lease be over, or of `only` these registry entries."""
    for entry in only or redis.zrange(keys.STARTED, 0, -1):
        redis.zadd(keys.STARTED, {entry: time.time() - 1}, xx=True)
