"""A client of the queue for tests that are not asynchronous, worker processes as tests see them, what Redis holds."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry
from redis.backoff import default_backoff
from service import job_spec

from deploy.part import child_environment
from worker import jobs, keys
from worker.connection import connect_async
from worker.job_record import Job

ROOT = Path(__file__).parents[1]
DEADLINE_S = 90.0  # of waits that end in a second or two on an idle machine
ENDED = ("completed", "failed", "cancelled")


def until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """What `condition` returns once that is true."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)
    return found


class Client:
    """The functions of worker/jobs.py and worker/status.py, called from a test that is not asynchronous."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def once() -> Any:
            retry = Retry(default_backoff(), 10)
            async with connect_async(self._url, max_connections=8, timeout=None, retry=retry) as redis:
                return await function(redis, *args)

        return asyncio.run(once())

    def submit(self, context: str, **changes: Any) -> Job:
        return self.call(jobs.submit, job_spec(context, **changes))

    def submit_all(self, contexts: Sequence[str], **changes: Any) -> list[Job]:
        async def several(redis: AsyncRedis) -> list[Job]:
            return [await jobs.submit(redis, job_spec(context, **changes)) for context in contexts]

        return self.call(several)

    def fetch(self, job: Job | str) -> Job:
        found = self.call(jobs.fetch, job if isinstance(job, str) else job.id)
        assert found is not None
        return found

    def cancel(self, job: Job) -> Job:
        cancelled, _ = self.call(jobs.cancel, job.id)
        return cancelled

    def status(self, job: Job) -> str:
        return self.fetch(job).status

    def until_ended(self, submitted: Sequence[Job]) -> list[Job]:
        """The jobs as they are when all have ended."""
        until(lambda: all(self.status(job) in ENDED for job in submitted))
        return [self.fetch(job) for job in submitted]


@dataclass(frozen=True)
class Part:
    """A worker process. `calls` are the contexts of each call that its answerer got."""

    process: subprocess.Popen[bytes]
    calls_path: Path
    log_path: Path

    @property
    def calls(self) -> list[list[str]]:
        lines = self.calls_path.read_text().splitlines() if self.calls_path.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def log(self) -> str:
        return self.log_path.read_text()


def run_worker(folder: Path, name: str, dies_when: str = "", **settings: Any) -> Part:
    """Starts a worker process with a scripted answerer (scripted.py). Its files in `folder` begin with `name`."""
    given = {f"FIELDCAST_{setting.upper()}": str(value) for setting, value in settings.items()}
    calls, log = (folder / f"{name}.{suffix}" for suffix in ("calls", "log"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "scripted.py", dies_when, str(calls)],
            cwd=ROOT,
            env=child_environment({"PYTHONUNBUFFERED": "1", **given}),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Part(process, calls, log)


@dataclass(frozen=True)
class Held:
    """Two jobs in one batch that `worker` runs until `release` is called."""

    first: Job
    second: Job
    worker: Part
    release: Callable[[], None]


def ids_in(redis: Redis, key: str) -> list[str]:
    """The ids in a list, or in a sorted set by score."""
    found = redis.lrange(key, 0, -1) if redis.type(key) == b"list" else redis.zrange(key, 0, -1)
    return [raw.decode() for raw in found]


def context_of(redis: Redis, job_id: str) -> str:
    """The id of the document that a job is about."""
    context: str = json.loads(redis.hget(keys.job(job_id), "meta"))["context"]  # type: ignore[arg-type]
    return context


def queued_ids(redis: Redis) -> list[str]:
    return ids_in(redis, keys.QUEUE_LIST)
