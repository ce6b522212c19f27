"""Backpressure: a full queue answers 429, says when to come back, and takes jobs again once there is room."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from redis.asyncio import Redis
from service import api_client

from api import metrics
from worker import keys
from worker.settings import Settings

pytestmark = pytest.mark.anyio

BODY = {"context": "The invoice is wrong.", "schema": {"angry": {"type": "boolean"}}}


async def publish_worker(redis: Redis, slot: str, jobs_per_s: float) -> None:
    """A live worker of that speed, as its lease publishes it."""
    now = time.time()
    about = {"info": {"model": "m"}, "pid": 1, "host": "h", "started_at": now, "last_step_at": now, "in_step": False}
    await redis.sadd(keys.SLOTS, slot)
    await redis.set(keys.worker(slot), json.dumps({**about, "jobs_per_s": jobs_per_s}))


def refused() -> float:
    return metrics.REGISTRY.get_sample_value("fieldcast_jobs_rejected_total", {"reason": "queue_full"}) or 0


async def fill(client: httpx.AsyncClient, jobs: int) -> list[str]:
    answers = [await client.post("/v1/jobs", json=BODY) for _ in range(jobs)]
    assert {answer.status_code for answer in answers} == {202}
    return [answer.headers["location"] for answer in answers]


async def test_a_full_queue_refuses_and_loses_nothing(settings: Settings, redis: Redis) -> None:
    async with api_client(settings.model_copy(update={"queue_max_jobs": 3})) as client:
        paths, before = await fill(client, 3), refused()
        answer = await client.post("/v1/jobs", json=BODY)
        assert (answer.status_code, answer.json()["type"]) == (429, "queue_full")
        assert answer.headers["content-type"] == "application/problem+json"
        assert "3 jobs wait" in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) > 0
        assert refused() == before + 1
        assert await redis.llen(keys.QUEUE_LIST) == 3
        assert {(await client.get(path)).json()["status"] for path in paths} == {"queued"}


async def test_a_place_that_becomes_free_is_taken_at_once(settings: Settings) -> None:
    async with api_client(settings.model_copy(update={"queue_max_jobs": 2})) as client:
        first, _ = await fill(client, 2)
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 429
        await client.post(f"{first}/cancel")
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 202
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 429


async def test_jobs_that_others_queue_count(settings: Settings) -> None:
    limited = settings.model_copy(update={"queue_max_jobs": 3})
    async with api_client(settings) as other, api_client(limited) as client:
        await fill(other, 3)
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 429


@pytest.mark.parametrize(("speeds", "wait_s"), [([2.0], 5), ([2.0, 3.0], 2), ([0.001], 300), ([1000.0], 1), ([], 30)])
async def test_the_wait_is_told_from_the_workers_speed(
    speeds: list[float], wait_s: int, settings: Settings, redis: Redis
) -> None:
    """A tenth of 100 places is to be free: 10 jobs."""
    for index, jobs_per_s in enumerate(speeds):
        await publish_worker(redis, f"mac-{index}", jobs_per_s)
    async with api_client(settings.model_copy(update={"queue_max_jobs": 100})) as client:
        await fill(client, 100)
        answer = await client.post("/v1/jobs", json=BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, str(wait_s))


async def test_a_store_that_holds_too_much_refuses(settings: Settings, redis: Redis) -> None:
    async with api_client(settings.model_copy(update={"queue_max_mb": 8})) as client:
        await fill(client, 1)
        await redis.set("ballast", b"x" * 16 * 2**20)
        limited = None
        for _ in range(100):  # a look at the store is a second old at most
            limited = await client.post("/v1/jobs", json=BODY)
            if limited.status_code == 429:
                break
            await asyncio.sleep(0.05)
        assert limited is not None
        assert (limited.status_code, limited.json()["type"]) == (429, "queue_full")
        assert "memory" in limited.json()["detail"]
        await redis.delete("ballast")
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 202


async def test_a_bad_request_is_refused_for_what_it_is(settings: Settings) -> None:
    async with api_client(settings.model_copy(update={"queue_max_jobs": 1})) as client:
        await fill(client, 1)
        assert (await client.post("/v1/jobs", json={"context": "x"})).status_code == 422
