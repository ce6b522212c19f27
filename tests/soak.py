"""`make soak`: many jobs through the HTTP API while workers are killed and stopped, connections cut, Redis restarted.

    PYTHONPATH=. .venv/bin/python tests/soak.py --jobs 20000 --seed 1

No model: the queue is soaked. Every job that the API took is looked at when it has ended, and again some seconds later.
At the end each must have ended exactly once, the API's and a worker's memory must not have grown over the last half,
and Redis must hold no more keys than before the first job, once the results' time is over.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from job_history import assert_one_end, left_in_queue
from queue_client import ENDED, until
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from service import SCHEMA
from soak_stack import Faults, Stack
from soak_watch import Watch

from worker import jobs
from worker.job_record import Job

BACKLOG = 200  # jobs that have not ended, at most
CLIENTS = 20  # httpx takes time for each connection that a client has, at each request
JOBS_PER_DOCUMENT = 5
RAISING, CANCELLED, INTERACTIVE = 0.03, 0.05, 0.1  # shares of the jobs
SLOW_S = (0, 0, 0.02, 0.1)
CANCEL_WITHIN_S = 0.5
WAIT_S = 5  # of one `Prefer: wait`
REPEAT_S = 0.2
LOOK_AGAIN_S = 4.0
LOSS_S = 2.0  # with appendfsync everysec, writes wait so long for a slow disk at most; what a killed server may lose
EXPIRY_S = 60  # for maintenance to notice that results have expired, at most
WORKER_KEYS = "rq:worker:"
SHOWN = 10  # failures, or keys of one


@dataclass
class Life:
    """One job that the API took."""

    id: str
    acknowledged_at: float  # monotonic
    raises: bool = False
    cancelled: bool = False
    seen: Job | None = None  # when it had ended

    @property
    def is_over(self) -> bool:
        """Has its result's time passed since it was seen?"""
        return self.seen is not None and self.seen.expires_at <= datetime.now(UTC)


class Soak:
    """One run. `failures` says what went wrong, empty when nothing did."""

    def __init__(self, stack: Stack, count: int, seed: int, result_ttl_s: int) -> None:
        self.failures: list[str] = []
        self._stack, self._count, self._seed, self._result_ttl_s = stack, count, seed, result_ttl_s
        self._chance = random.Random(seed)
        self._faults = Faults(stack, seed)
        self._ends: Counter[str] = Counter()
        self._wrong: set[str] = set()
        self._started_again = self._refused = 0
        self._clients: list[httpx.AsyncClient] = []
        self._backlog = asyncio.Semaphore(BACKLOG)

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2)  # uvicorn closes its ends after 5 s
        async with AsyncExitStack() as opened:
            for _ in range(CLIENTS):
                client = httpx.AsyncClient(base_url=self._stack.url, timeout=60, limits=limits)
                self._clients.append(await opened.enter_async_context(client))
            redis_url = self._stack.valkey.url
            self._async_redis = await opened.enter_async_context(AsyncRedis.from_url(redis_url))
            self._redis = opened.enter_context(Redis.from_url(redis_url))
            await self._soak()

    async def _soak(self) -> None:
        await self._warm_up()
        before, began = self._keys(), time.monotonic()
        watch = Watch(self._stack, self._faults, self._redis, self._count, self._ends.total)
        watching = asyncio.create_task(watch.run())
        faults = asyncio.create_task(self._faults.run())
        async with asyncio.TaskGroup() as lives:
            for number in range(self._count):
                await self._backlog.acquire()
                lives.create_task(self._live(number))
        self._faults.end()
        await faults
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        print(f"\n{time.monotonic() - began:.0f} s; faults: {_counted(self._faults.counts)}")
        print(f"requests that were refused while Redis was away, and sent again: {self._refused}")
        self._judge_ends()
        self.failures += watch.grown()
        self._judge_keys(before)
        self.failures += self._stack.died

    async def _warm_up(self) -> None:
        """One job, and no trace of it: what the queue keeps for good is there then."""
        life = await self._submit("fine", "bulk")
        await self._look(life)
        await self._send("DELETE", f"/v1/jobs/{life.id}")
        until(lambda: not left_in_queue(self._redis))

    # One job

    async def _live(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number // JOBS_PER_DOCUMENT}")
        raises = chance.random() < RAISING
        context = f"raise {number}" if raises else f"sleep {chance.choice(SLOW_S)} {number // JOBS_PER_DOCUMENT}"
        try:
            life = await self._submit(context, "interactive" if self._chance.random() < INTERACTIVE else "bulk")
            life.raises, life.cancelled = raises, self._chance.random() < CANCELLED
            if life.cancelled:
                await asyncio.sleep(self._chance.uniform(0, CANCEL_WITHIN_S))
                await self._send("POST", f"/v1/jobs/{life.id}/cancel")
            job = await self._look(life)
        finally:
            self._backlog.release()
        if job is not None:
            await asyncio.sleep(LOOK_AGAIN_S)
            job = await self._look(life)
        self._note(job)

    async def _submit(self, context: str, priority: str) -> Life:
        body = {"context": context, "schema": SCHEMA.to_dict(), "priority": priority}
        answer = await self._send("POST", "/v1/jobs", json=body)
        return Life(answer.json()["id"], time.monotonic())

    async def _look(self, life: Life) -> Job | None:
        """The job once it has ended; None when it is gone. A killed Redis may come back with a job that had ended as
        one that has not."""
        while True:
            answer = await self._send("GET", f"/v1/jobs/{life.id}", headers={"prefer": f"wait={WAIT_S}"})
            if answer.status_code != 404 and answer.json()["status"] not in ENDED:
                continue
            async with self._stack.calm:
                try:
                    job = await jobs.fetch(self._async_redis, life.id)
                except RedisConnectionError:  # cut, like everybody's
                    continue
                if job is None and life.is_over:
                    return life.seen
                if job is None or job.status in ENDED:
                    self._check(life, job)
                    life.seen = job
                    return job

    def _check(self, life: Life, job: Job | None) -> None:
        if job is None:
            if not any(abs(kill - life.acknowledged_at) <= LOSS_S for kill in self._faults.redis_kills):
                self._fail(life, "it is gone")
            return
        try:
            assert _may_be(life, job), job
            assert_one_end(self._redis, job, most_attempts=1 + self._faults.counts.total())
        except AssertionError as failure:
            where = traceback.extract_tb(failure.__traceback__)[-1].line
            self._fail(life, f"{where}: {failure}")

    def _fail(self, life: Life, why: str) -> None:
        self._wrong.add(life.id)
        self.failures.append(f"{life.id} did not end exactly once: {why}")

    def _note(self, job: Job | None) -> None:
        self._ends["lost" if job is None else "quarantined" if _is_quarantined(job) else job.status] += 1
        self._started_again += job is not None and job.attempts > 1

    async def _send(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Again and again while Redis is away. What was refused then may have been stored all the same."""
        while True:
            answer = await self._chance.choice(self._clients).request(method, path, **given)
            if answer.status_code in (200, 202, 204, 404):
                return answer
            if answer.status_code != 503:
                raise RuntimeError(f"{method} {path} was answered {answer.status_code}: {answer.text}")
            self._refused += 1
            await asyncio.sleep(REPEAT_S)

    # What came of it

    def _judge_ends(self) -> None:
        print(f"jobs acknowledged: {self._ends.total()}; {_counted(self._ends)}")
        print(f"of these started more than once: {self._started_again}; not ended exactly once: {len(self._wrong)}")
        kills = len(self._faults.redis_kills)
        print(f"lost, acknowledged within {LOSS_S:g} s of one of {kills} kills of Redis: {self._ends['lost']}")
        with suppress(AssertionError):
            until(lambda: not left_in_queue(self._redis))
        if left := left_in_queue(self._redis):
            self.failures.append(f"the queue still holds {left}")

    def _judge_keys(self, before: set[str]) -> None:
        with suppress(AssertionError):
            until(lambda: self._keys() <= before, self._result_ttl_s + EXPIRY_S)
        left = self._keys() - before
        workers = list(self._redis.scan_iter(f"{WORKER_KEYS}*"))
        print(f"keys: {len(before)} before the first job, {len(self._keys())} after the last result's time; ", end="")
        print(f"besides {len(workers)} of workers alive or lately killed, which expire")
        if left or any(self._redis.ttl(key) == -1 for key in workers):
            self.failures.append(f"keys are left: {sorted(left)[:SHOWN]}")

    def _keys(self) -> set[str]:
        """The keys there are, but those by which RQ knows its workers."""
        found = {raw.decode() for raw in self._redis.scan_iter(count=1000)}
        return {key for key in found if not key.startswith(WORKER_KEYS)}


def _is_quarantined(job: Job) -> bool:
    return job.error is not None and job.error["type"] == "quarantined"


def _may_be(life: Life, job: Job) -> bool:
    """May this job have ended like this?"""
    if job.status == "cancelled":
        return life.cancelled
    return _is_quarantined(job) or (job.status == "failed") == life.raises


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


async def soak(count: int, seed: int, result_ttl_s: int) -> list[str]:
    """What went wrong in one run."""
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), result_ttl_s) as stack:
        run = Soak(stack, count, seed, result_ttl_s)
        await run.run()
        return run.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, metavar="N", help="jobs to submit (default 20000)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), metavar="N", help="of the faults")
    parser.add_argument("--result-ttl", type=int, default=20, metavar="S", help="seconds results are kept (default 20)")
    chosen = parser.parse_args()
    print(f"--jobs {chosen.jobs} --seed {chosen.seed}")
    failures = asyncio.run(soak(chosen.jobs, chosen.seed, chosen.result_ttl))
    for failure in failures[:SHOWN]:
        print(f"FAILED: {failure}")
    print(f"{len(failures)} failures" if failures else "passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
