"""`GET` and `DELETE /v1/jobs/{id}` and `/cancel`, without a worker: looking, waiting, cancelling, deleting."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from redis.asyncio import Redis

from api import metrics, waiting
from worker import jobs
from worker.keys import DONE_CHANNEL

pytestmark = pytest.mark.anyio

BODY = {"context": "The invoice is wrong.", "schema": {"angry": {"type": "boolean"}}}
PATIENCE_S = 40  # shorter than the waits of these tests, so that none of them ends by itself
UNKNOWN = "0" * 16 + "-" + "0" * 32


async def submit(client: httpx.AsyncClient) -> str:
    answer = await client.post("/v1/jobs", json=BODY)
    assert answer.status_code == 202, answer.text
    return str(answer.headers["location"])


async def test_a_job_that_has_not_ended_is_200_with_retry_after(client: httpx.AsyncClient) -> None:
    answer = await client.get(await submit(client))
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert "retry-after" in answer.headers
    assert "preference-applied" not in answer.headers


async def test_an_unchanged_job_is_304(client: httpx.AsyncClient) -> None:
    path = await submit(client)
    etag = (await client.get(path)).headers["etag"]
    for tags in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        answer = await client.get(path, headers={"if-none-match": tags})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200
    await client.post(f"{path}/cancel")
    changed = await client.get(path, headers={"if-none-match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag


@pytest.mark.parametrize("job_id", [UNKNOWN, "x", "%00", "a b", "%ff", "rq:job:1", "..", "*", "x" * 3000])
async def test_an_unknown_job_is_404(client: httpx.AsyncClient, job_id: str) -> None:
    for answer in (
        await client.get(f"/v1/jobs/{job_id}"),
        await client.get(f"/v1/jobs/{job_id}", headers={"prefer": "wait=20"}),
        await client.post(f"/v1/jobs/{job_id}/cancel"),
    ):
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


async def test_waiting_in_vain_ends_in_202(client: httpx.AsyncClient) -> None:
    path = await submit(client)
    started = time.monotonic()
    answer = await client.get(path, headers={"prefer": "wait=1"})
    assert time.monotonic() - started >= 0.99
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    assert answer.headers["preference-applied"] == "wait=1"
    assert "retry-after" in answer.headers


async def test_a_preference_that_cannot_be_read_is_ignored(client: httpx.AsyncClient) -> None:
    answer = await client.get(await submit(client), headers={"prefer": "wait=soon"})
    assert answer.status_code == 200
    assert "preference-applied" not in answer.headers


async def test_a_message_wakes_all_who_wait(
    client: httpx.AsyncClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "RECHECK_S", 600)  # so that only the message can wake them
    path = await submit(client)
    held = [asyncio.create_task(client.get(path, headers={"prefer": "wait=60"})) for _ in range(20)]
    await _until_waiting(client, len(held))
    await jobs.cancel(redis, path.rpartition("/")[2])
    await redis.publish(DONE_CHANNEL, json.dumps({"ids": [UNKNOWN, path.rpartition("/")[2]]}))
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*held)
    assert {(a.status_code, a.json()["status"]) for a in answers} == {(200, "cancelled")}
    assert {a.headers["preference-applied"] for a in answers} == {"wait=60"}


async def test_a_lost_message_only_delays(client: httpx.AsyncClient, redis: Redis) -> None:
    path = await submit(client)
    held = asyncio.create_task(client.get(path, headers={"prefer": "wait=60"}))
    await _until_waiting(client, 1)
    async with asyncio.timeout(PATIENCE_S):
        await redis.client_kill_filter(_type="pubsub")
        await jobs.cancel(redis, path.rpartition("/")[2])
        answer = await held
    assert answer.json()["status"] == "cancelled"


@pytest.mark.parametrize("message", [b"", b"{", b"[]", b'"ids"', b'{"ids": 3}', b'{"ids": [{}]}', b"\xff"])
async def test_an_unreadable_message_is_survived(client: httpx.AsyncClient, redis: Redis, message: bytes) -> None:
    path = await submit(client)
    held = asyncio.create_task(client.get(path, headers={"prefer": "wait=60"}))
    await _until_waiting(client, 1)
    await redis.publish(DONE_CHANNEL, message)
    async with asyncio.timeout(PATIENCE_S):
        await client.post(f"{path}/cancel")
        assert (await held).json()["status"] == "cancelled"


def counted() -> float:
    labels = {"preset": "custom", "status": "cancelled"}
    return metrics.REGISTRY.get_sample_value("fieldcast_jobs_finished_total", labels) or 0


async def test_a_deleted_job_is_gone(client: httpx.AsyncClient, redis: Redis) -> None:
    path, before = await submit(client), counted()
    held = asyncio.create_task(client.get(path, headers={"prefer": "wait=60"}))
    await _until_waiting(client, 1)
    async with asyncio.timeout(PATIENCE_S):
        answer = await client.delete(path)
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await held).status_code == 404
    assert counted() == before + 1  # it had not ended
    assert await redis.keys("*document*") == []
    for again in (await client.delete(path), await client.get(path), await client.post(f"{path}/cancel")):
        assert (again.status_code, again.json()["type"]) == (404, "job_not_found")


async def test_an_ended_job_that_is_deleted_counts_once(client: httpx.AsyncClient) -> None:
    path, before = await submit(client), counted()
    await client.post(f"{path}/cancel")
    assert (await client.delete(path)).status_code == 204
    assert counted() == before + 1


async def test_cancelling_again_changes_nothing(client: httpx.AsyncClient) -> None:
    path, before = await submit(client), counted()
    first = await client.post(f"{path}/cancel")
    second = await client.post(f"{path}/cancel")
    assert counted() == before + 1
    assert first.status_code == second.status_code == 200
    assert first.json()["status"] == "cancelled"
    assert second.json() == first.json() == (await client.get(path)).json()


async def _until_waiting(client: httpx.AsyncClient, count: int) -> None:
    transport = client._transport
    assert isinstance(transport, httpx.ASGITransport)
    waiter = transport.app.state.waiter  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE_S):
        while waiter.waiting < count or not waiter.listening:
            await asyncio.sleep(0.01)
