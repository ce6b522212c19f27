"""The whole path: a document in over HTTP, typed answers out, by a real worker with the real model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest

import presets
from worker.settings import Settings

pytestmark = pytest.mark.anyio

Running = Callable[[Settings], AbstractAsyncContextManager[httpx.AsyncClient]]
WAIT = {"prefer": "wait=30"}
SCHEMA = {
    "language": {"type": "enum", "choices": ["English", "French", "German"], "description": "The text's language"},
    "angry": {"type": "boolean", "description": "Is the writer angry?"},
    "severity": {"type": "score", "levels": ["none", "minor", "major"], "description": "How bad is it?"},
}


@pytest.fixture
async def served_client(served: Settings, running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with running(served) as client:
        yield client


async def answered(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    taken = await client.post("/v1/jobs", json=body)
    assert taken.status_code == 202, taken.text
    answer = await client.get(taken.headers["location"], headers=WAIT)
    while answer.status_code == 202:
        answer = await client.get(taken.headers["location"], headers=WAIT)
    assert answer.headers["preference-applied"] == "wait=30"
    job: dict[str, Any] = answer.json()
    return job


async def test_a_document_is_answered(served_client: httpx.AsyncClient) -> None:
    options = {"min_confidence": 1.0, "top_k": 2}
    body = {"context": "Bonjour, la facture est fausse !", "schema": SCHEMA, "options": options, "metadata": {"n": "1"}}
    job = await answered(served_client, body)
    assert (job["status"], job["error"], job["metadata"]) == ("completed", None, {"n": "1"})
    result = job["result"]
    assert set(result["json"]) == set(SCHEMA)
    assert result["json"]["language"] in SCHEMA["language"]["choices"]
    assert isinstance(result["json"]["angry"], bool)
    assert 0 <= result["field_telemetry"]["severity"]["expected"] <= 2
    assert len(result["field_telemetry"]["language"]["top_choices"]) == 2
    assert set(job["review"]) == {n for n, t in result["field_telemetry"].items() if t["confidence"] < 1.0}
    assert job["timings"]["total_ms"] > 0
    assert job["batch"]["jobs"] >= 1


async def test_a_preset_is_answered(served_client: httpx.AsyncClient) -> None:
    preset = presets.load("support_triage")
    job = await answered(served_client, {"context": preset.samples[0], "preset": preset.name})
    assert job["status"] == "completed", job["error"]
    assert list(job["result"]["json"]) == list(preset.schema)


async def test_a_context_that_is_too_long_fails_and_says_how_long(served_client: httpx.AsyncClient) -> None:
    job = await answered(served_client, {"context": "word " * 20_000, "schema": SCHEMA})
    assert (job["status"], job["result"], job["error"]["type"]) == ("failed", None, "context_too_long")
    assert "tokens" in job["error"]["detail"]


async def test_many_schemas_over_one_context_share_a_batch(served_client: httpx.AsyncClient) -> None:
    bodies = [
        {"context": "The parcel never came.", "schema": {f"field_{n}": {"type": "boolean"}}, "priority": "bulk"}
        for n in range(10)
    ]
    jobs = await asyncio.gather(*(answered(served_client, body) for body in bodies))
    assert {job["status"] for job in jobs} == {"completed"}
    assert max(job["batch"]["jobs"] for job in jobs) > 1


async def test_a_finished_job_cannot_be_cancelled(served_client: httpx.AsyncClient) -> None:
    job = await answered(served_client, {"context": "Fine.", "schema": SCHEMA})
    answer = await served_client.post(job["links"]["cancel"])
    assert (answer.status_code, answer.json()) == (200, job)


async def test_the_model_is_named_and_the_service_is_ready(served_client: httpx.AsyncClient) -> None:
    (model,) = (await served_client.get("/v1/models")).json()["models"]
    assert model["name"] == "smollm2-135m"
    assert model["description"]
    assert model["release_date"] == "2024-11-01"
    assert model["x_strategy"] in ("packed", "broadcast")
    assert "x_strategy_check" in model
    ready = await served_client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
