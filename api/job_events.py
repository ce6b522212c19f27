"""A job's life as server-sent events: `queued`, `started`, then `completed`, `failed`, `cancelled` or `expired`.

What has happened is read from the job itself, so nothing is stored for a stream and a client that comes back is told
what it missed. Knows the waiter, `worker.job_record` and the events' wire format; no route.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from fastapi.sse import format_sse_event
from redis.exceptions import RedisError

from api.waiting import JobWaiter, has_ended
from worker.job_record import Job

PING = format_sse_event(comment="ping")
PING_S = 15.0  # the longest silence, so that no proxy takes the stream for dead
RETRY_MS = 1000  # told to clients: how soon to come back when a stream breaks


async def follow(
    waiter: JobWaiter, job_id: str, last_id: str | None, is_gone: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """The events after `last_id` as they happen, each once, until the job has ended, is deleted, the client `is_gone`
    or the waiter is closed. While Redis is away the client is only pinged."""
    told: set[str] = set()
    silent_since = time.monotonic()
    while not (waiter.closed or await is_gone()):
        try:
            async with aclosing(waiter.looks(job_id)) as looks:
                async for job in looks:
                    if job is None or await is_gone():
                        return
                    for event_id, event in after(happened(job), last_id).items():
                        if event_id not in told:
                            told.add(event_id)
                            silent_since = time.monotonic()
                            yield event
                    if time.monotonic() - silent_since >= PING_S:
                        silent_since = time.monotonic()
                        yield PING
            return
        except RedisError:
            yield PING
            await asyncio.sleep(RETRY_MS / 1000)


def happened(job: Job) -> dict[str, bytes]:
    """The events of the job so far, in order, as bytes on the wire, by their ids.

    Each run of a job that is run again has a `started` of its own. The last event carries the whole job, as
    `GET /v1/jobs/{id}` gives it; the others its `id`, `status` and the time `at` which they happened.
    """
    body = job.to_dict()
    events = [_event("queued", body["created_at"], {"id": job.id, "status": "queued", "at": body["created_at"]})]
    if body["started_at"] is not None and job.status != "queued":
        begun = {"id": job.id, "status": "in_progress", "at": body["started_at"]}
        events.append(_event("started", body["started_at"], begun))
    if has_ended(job):
        events.append(_event(job.status, body["finished_at"] or body["created_at"], body))
    return dict(events)


def _event(name: str, at: str, data: dict[str, Any]) -> tuple[str, bytes]:
    event_id = f"{name}-{at}"
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return event_id, format_sse_event(event=name, data_str=text, id=event_id, retry=RETRY_MS)


def after(events: dict[str, bytes], last_id: str | None) -> dict[str, bytes]:
    """Those after the one with this id; all when it is not among them."""
    ids = list(events)
    first = ids.index(last_id) + 1 if last_id in events else 0
    return {event_id: events[event_id] for event_id in ids[first:]}
