"""Waiting for jobs to end. Knows Redis's pub/sub and worker.jobs; no HTTP.

One subscription per process listens for the ids of finished jobs and wakes whoever waits for them. It is a hint only:
each waiter also looks again by itself every `RECHECK_S`, because RQ's own clean-up publishes nothing and a message may
be lost while the connection is down.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError
from structlog import get_logger

from worker.job_record import Job
from worker.jobs import fetch
from worker.keys import DONE_CHANNEL

log = get_logger(__name__)

RECHECK_S = 1.5
RECONNECT_S = 0.5
LISTEN_S = 5.0  # longest single read; None would run into the connection's own time-out
ENDED = frozenset({"completed", "failed", "cancelled", "expired"})


def has_ended(job: Job) -> bool:
    return job.status in ENDED


class JobWaiter:
    """Start `listen` once as a task; then any number of coroutines may `wait`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.listening = False
        self.closed = False

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return sum(map(len, self._waiting.values()))

    def close(self) -> None:
        """Lets everyone go with the job as it is; from now on nobody waits."""
        self.closed = True
        for events in self._waiting.values():
            for done in events:
                done.set()

    async def wait(
        self, job_id: str, timeout_s: float, is_gone: Callable[[], Awaitable[bool]] | None = None
    ) -> Job | None:
        """The job once it has ended, or as it is after `timeout_s`, when `is_gone` or when this waiter is closed; None:
        there is no such job."""
        job = None
        async with aclosing(self.looks(job_id, timeout_s)) as looks:
            async for look in looks:
                job = look
                if is_gone and await is_gone():
                    break
        return job

    async def looks(self, job_id: str, timeout_s: float = math.inf) -> AsyncGenerator[Job | None]:
        """The job as it is now, and again every `RECHECK_S` and when it ends. The last look: it has ended, `timeout_s`
        is over, this waiter is closed, or (None) there is no such job."""
        deadline = time.monotonic() + timeout_s
        done = asyncio.Event()
        # Registered before the first look: a job that ends between the look and the wait must still wake us.
        self._waiting[job_id].add(done)
        try:
            while True:
                done.clear()
                job = await fetch(self._redis, job_id)
                yield job
                left_s = deadline - time.monotonic()
                if job is None or has_ended(job) or left_s <= 0 or self.closed:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), min(RECHECK_S, left_s))
        finally:
            self._waiting[job_id].discard(done)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def listen(self) -> None:
        """Wakes waiters until cancelled; subscribes again whenever the connection is lost."""
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(DONE_CHANNEL)
                    self.listening = True
                    while True:
                        message = await pubsub.get_message(timeout=LISTEN_S)
                        if message is not None:
                            self._wake(message["data"])
            except (RedisError, OSError) as error:
                self.listening = False
                log.warning("subscription lost", action="subscription_lost", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_S)

    def _wake(self, data: bytes | str) -> None:
        try:
            for job_id in json.loads(data)["ids"]:
                for done in self._waiting.get(job_id, ()):
                    done.set()
        except (ValueError, KeyError, TypeError):
            log.warning("unreadable message", action="message_ignored", channel=DONE_CHANNEL)
