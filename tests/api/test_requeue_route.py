"""`POST /v1/jobs/{id}/requeue`, without a worker."""

from __future__ import annotations

import httpx
import pytest
from redis.asyncio import Redis

from worker import documents, keys

pytestmark = pytest.mark.anyio

BODY = {"context": "The invoice is wrong.", "schema": {"angry": {"type": "boolean"}}}
UNKNOWN = "0" * 16 + "-" + "0" * 32


async def cancelled(client: httpx.AsyncClient) -> str:
    path = str((await client.post("/v1/jobs", json=BODY)).headers["location"])
    assert (await client.post(f"{path}/cancel")).json()["status"] == "cancelled"
    return path


async def test_a_cancelled_job_is_taken_again(client: httpx.AsyncClient) -> None:
    path = await cancelled(client)
    answer = await client.post(f"{path}/requeue")
    assert (answer.status_code, answer.headers["location"]) == (202, path)
    assert "retry-after" in answer.headers
    job = answer.json()
    assert (job["status"], job["queue_position"], job["finished_at"]) == ("queued", 1, None)
    assert (await client.get(path)).json() == job


async def test_a_job_that_waits_is_a_conflict(client: httpx.AsyncClient) -> None:
    path = await cancelled(client)
    await client.post(f"{path}/requeue")
    answer = await client.post(f"{path}/requeue")
    assert (answer.status_code, answer.json()["type"]) == (409, "job_not_failed")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_without_its_document_it_is_a_conflict_that_says_so(client: httpx.AsyncClient, redis: Redis) -> None:
    path = await cancelled(client)
    await redis.delete(keys.document(documents.context_id(BODY["context"])))
    answer = await client.post(f"{path}/requeue")
    assert (answer.status_code, answer.json()["type"]) == (409, "document_expired")
    assert "submit" in answer.json()["detail"]


@pytest.mark.parametrize("job_id", [UNKNOWN, "x", "%00", "*"])
async def test_an_unknown_job_is_404(client: httpx.AsyncClient, job_id: str) -> None:
    answer = await client.post(f"/v1/jobs/{job_id}/requeue")
    assert (answer.status_code, answer.json()["type"]) == (404, "job_not_found")


async def test_it_is_counted_as_submitted_again(client: httpx.AsyncClient) -> None:
    async def count(name: str) -> float:
        lines = (await client.get("/metrics")).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"fieldcast_{name}"))

    before = await count("jobs_submitted_total"), await count("jobs_finished_total")
    path = await cancelled(client)
    await client.post(f"{path}/requeue")
    await client.post(f"{path}/cancel")
    assert (await count("jobs_submitted_total"), await count("jobs_finished_total")) == (before[0] + 2, before[1] + 2)
