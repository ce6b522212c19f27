"""What is running and what waits, read from Redis. Imports no mlx."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis.asyncio import Redis
from rq.utils import as_text

from worker import keys


@dataclass(frozen=True)
class WorkerStatus:
    """A live worker. `info` is its engine's `ModelInfo` as a dict; times are Unix seconds."""

    slot: str
    info: dict[str, Any]
    pid: int
    host: str
    started_at: float
    last_step_at: float
    in_step: bool  # a batch is being answered; the worker itself ends one that takes too long
    jobs_per_s: float  # ended, over the last minute


@dataclass(frozen=True)
class QueueDepth:
    """Jobs that wait, jobs that run, and how long the oldest waiting one has (seconds; None: none waits)."""

    queued: int
    in_progress: int
    oldest_age_s: float | None


@dataclass(frozen=True)
class QueueLoad:
    """What submissions are measured against: waiting jobs, all of Redis's memory, and how fast all workers together
    end jobs."""

    queued: int
    memory_bytes: int
    jobs_per_s: float


async def queue_load(redis: Redis) -> QueueLoad:
    """Two round trips."""
    async with redis.pipeline(transaction=False) as pipeline:
        pipeline.llen(keys.QUEUE_LIST)
        pipeline.info("memory")
        pipeline.smembers(keys.SLOTS)
        queued, memory, slots = await pipeline.execute()
    alive = await _alive(redis, slots)
    return QueueLoad(queued, int(memory["used_memory"]), sum(worker.jobs_per_s for worker in alive))


async def workers(redis: Redis) -> list[WorkerStatus]:
    """Workers whose lease has not run out."""
    return await _alive(redis, await redis.smembers(keys.SLOTS))


async def _alive(redis: Redis, of: Iterable[Any]) -> list[WorkerStatus]:
    slots = sorted(as_text(slot) for slot in of)
    found = await redis.mget([keys.worker(slot) for slot in slots]) if slots else []
    return [WorkerStatus(slot=slot, **json.loads(raw)) for slot, raw in zip(slots, found, strict=True) if raw]


async def queue_depth(redis: Redis) -> QueueDepth:
    """From the queue's ends: bulk jobs are in order of arrival behind the interactive ones."""
    async with redis.pipeline(transaction=True) as pipeline:
        pipeline.llen(keys.QUEUE_LIST)
        pipeline.zcard(keys.STARTED)
        pipeline.lrange(keys.QUEUE_LIST, 0, FRONT - 1)
        queued, in_progress, front = await pipeline.execute()
        for job_id in front:
            pipeline.hget(keys.job(job_id.decode()), "enqueued_at")
        times = [t for t in await pipeline.execute() if t] if front else []
    oldest = min((datetime.fromisoformat(t.decode()).timestamp() for t in times), default=None)
    return QueueDepth(queued, in_progress, None if oldest is None else max(0.0, time.time() - oldest))


FRONT = 64  # entries in which the oldest waiting job is looked for
