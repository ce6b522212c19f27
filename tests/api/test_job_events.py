"""`GET /v1/jobs/{id}/events`, without a worker. The stream of a job that is answered is in test_answers.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx
import pytest
from redis.asyncio import Redis
from service import events_in, job_spec

from api import job_events
from api.job_body import JobBody
from api.waiting import JobWaiter
from worker import jobs, keys

pytestmark = pytest.mark.anyio

PATIENCE_S = 40
UNKNOWN = "0" * 16 + "-" + "0" * 32


async def submit(client: httpx.AsyncClient) -> str:
    answer = await client.post("/v1/jobs", json={"context": "Late again.", "schema": {"angry": {"type": "boolean"}}})
    return str(answer.json()["links"]["self"])


async def present() -> bool:
    return False


async def test_a_cancelled_job_tells_its_life_and_the_stream_ends(client: httpx.AsyncClient) -> None:
    path = await submit(client)
    await client.post(f"{path}/cancel")
    async with asyncio.timeout(PATIENCE_S):
        answer = await client.get(f"{path}/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    job = (await client.get(path)).json()
    queued, cancelled = events_in(answer.text)
    assert (queued.name, cancelled.name) == ("queued", "cancelled")
    assert json.loads(queued.data) == {"id": job["id"], "status": "queued", "at": job["created_at"]}
    assert json.loads(cancelled.data) == job
    JobBody.model_validate_json(cancelled.data)


async def test_a_client_that_comes_back_is_told_what_it_missed(client: httpx.AsyncClient) -> None:
    path = await submit(client)
    await client.post(f"{path}/cancel")
    queued, cancelled = events_in((await client.get(f"{path}/events")).text)
    for last_id, missed in ((queued.id, [cancelled]), ("nothing of ours", [queued, cancelled])):
        answer = await client.get(f"{path}/events", headers={"last-event-id": last_id})
        assert events_in(answer.text) == missed
    all_told = await client.get(f"{path}/events", headers={"last-event-id": cancelled.id})
    assert (all_told.status_code, all_told.content) == (204, b"")


async def test_an_unknown_job_has_no_events(client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/v1/jobs/{UNKNOWN}/events")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_events_come_as_they_happen_also_after_the_connection_was_lost(redis: Redis) -> None:
    job = await jobs.submit(redis, job_spec())
    async with asyncio.timeout(PATIENCE_S), aclosing(following(redis, job.id)) as stream:
        assert (await anext(stream)).startswith(b"event: queued\n")
        started = "2026-12-04T10:00:00.000000Z"
        await redis.hset(keys.job(job.id), mapping={"status": "started", "started_at": started})
        assert (await anext(stream)).startswith(b"event: started\n")
        await redis.hset(keys.job(job.id), mapping={"status": "queued"})  # its worker died
        again = "2026-12-04T10:00:07.000000Z"
        await redis.hset(keys.job(job.id), mapping={"status": "started", "started_at": again})
        assert b'"at":"2026-12-04T10:00:07.000Z"' in await anext(stream)
        await redis.client_kill_filter(_type="normal", skipme=True)
        await jobs.cancel(redis, job.id)
        rest = [event async for event in stream if event != job_events.PING]
    assert [event.split(b"\n")[0] for event in rest] == [b"event: cancelled"]


async def test_a_deleted_job_ends_the_stream(redis: Redis) -> None:
    job = await jobs.submit(redis, job_spec())
    async with asyncio.timeout(PATIENCE_S), aclosing(following(redis, job.id)) as stream:
        await anext(stream)
        await jobs.delete(redis, job.id)
        assert [event async for event in stream] == []


async def test_a_quiet_stream_is_pinged(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "PING_S", 0)
    job = await jobs.submit(redis, job_spec())
    async with asyncio.timeout(PATIENCE_S), aclosing(following(redis, job.id)) as stream:
        assert (await anext(stream)).startswith(b"event: queued\n")
        assert await anext(stream) == job_events.PING


async def test_a_client_that_has_gone_ends_the_stream_and_is_no_longer_waited_for(redis: Redis) -> None:
    job = await jobs.submit(redis, job_spec())
    waiter, gone = JobWaiter(redis), False

    async def is_gone() -> bool:
        return gone

    async with asyncio.timeout(PATIENCE_S), aclosing(job_events.follow(waiter, job.id, None, is_gone)) as stream:
        await anext(stream)
        assert waiter.waiting == 1
        gone = True
        assert [event async for event in stream] == []
    assert waiter.waiting == 0


async def following(redis: Redis, job_id: str) -> AsyncIterator[bytes]:
    waiter = JobWaiter(redis)
    listener = asyncio.create_task(waiter.listen())
    try:
        async with aclosing(job_events.follow(waiter, job_id, None, present)) as stream:
            async for event in stream:
                yield event
    finally:
        listener.cancel()
