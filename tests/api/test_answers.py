"""The whole path: a document in over HTTP, typed answers out, by a real worker with the real model."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from service import api_client, events_in

import presets
from api.job_body import JobBody
from worker import status
from worker.settings import Settings

pytestmark = pytest.mark.anyio

WAIT = {"prefer": "wait=30"}
SCHEMA = {
    "language": {"type": "enum", "choices": ["English", "French", "German"], "description": "The text's language"},
    "angry": {"type": "boolean", "description": "Is the writer angry?"},
    "severity": {"type": "score", "levels": ["none", "minor", "major"], "description": "How bad is it?"},
}


@pytest.fixture
async def served_client(served: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(served) as client:
        yield client


async def answered(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    taken = await client.post("/v1/jobs", json=body)
    assert taken.status_code == 202, taken.text
    return await ended(client, taken.headers["location"])


async def ended(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await client.get(path, headers=WAIT)
    while answer.status_code == 202:
        answer = await client.get(path, headers=WAIT)
    assert answer.headers["preference-applied"] == "wait=30"
    job: dict[str, Any] = answer.json()
    JobBody.model_validate(job)  # as the OpenAPI document has it
    assert (job["result"] is None) != (job["error"] is None)
    return job


async def worker_metrics(served: Settings) -> dict[str, float]:
    """The worker's series that have no label, by name."""
    async with httpx.AsyncClient() as client:
        scrape = (await client.get(f"http://127.0.0.1:{served.worker_metrics_port}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(scrape) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if not sample.labels}


async def test_a_stream_tells_a_job_s_life_and_ends_with_its_answers(served_client: httpx.AsyncClient) -> None:
    taken = await served_client.post("/v1/jobs", json={"context": "Bonjour.", "schema": SCHEMA})
    stream = await served_client.get(taken.json()["links"]["events"])
    queued, started, completed = events_in(stream.text)
    assert (queued.name, started.name, completed.name) == ("queued", "started", "completed")
    assert completed.data == (await served_client.get(taken.headers["location"])).text


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
    preset = presets.load("fintech_fraud")
    job = await answered(served_client, {"context": preset.samples[0], "preset": preset.name})
    assert job["status"] == "completed", job["error"]
    assert list(job["result"]["json"]) == list(preset.schema)


async def test_a_context_that_is_too_long_fails_and_says_how_long(served_client: httpx.AsyncClient) -> None:
    job = await answered(served_client, {"context": "word " * 20_000, "schema": SCHEMA})
    assert (job["status"], job["result"], job["error"]["type"]) == ("failed", None, "context_too_long")
    assert re.search(r"20\d\d\d tokens.* 8192", job["error"]["detail"]), job["error"]["detail"]


async def test_ten_schemas_over_one_context_are_one_batch_that_reads_it_once(
    served_client: httpx.AsyncClient, served: Settings
) -> None:
    context = "The parcel never came, though the driver's note says that it was left with a neighbour. " * 20
    bodies = [{"context": context, "schema": {f"field_{n}": {"type": "boolean"}}} for n in range(10)]
    async with Redis.from_url(str(served.redis_url)) as redis:
        (worker,) = await status.workers(redis)
    before = await worker_metrics(served)
    os.kill(worker.pid, signal.SIGSTOP)  # or it would answer the first before the last is there
    try:
        taken = [await served_client.post("/v1/jobs", json=body) for body in bodies]
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    jobs = [await ended(served_client, answer.headers["location"]) for answer in taken]
    after = await worker_metrics(served)
    grown = {name: after[name] - before[name] for name in after if name in before}

    assert {job["status"] for job in jobs} == {"completed"}
    assert {(job["batch"]["jobs"], job["batch"]["contexts"]) for job in jobs} == {(10, 1)}
    assert (grown["fieldcast_batch_jobs_count"], grown["fieldcast_batch_jobs_sum"]) == (1, 10)
    context_tokens = jobs[0]["batch"]["shared_tokens"]
    assert context_tokens >= 300
    assert all(job["result"]["usage"]["input_tokens"] > context_tokens for job in jobs)  # each of them read it
    assert context_tokens < grown["fieldcast_batch_tokens_sum"] < 2 * context_tokens  # computed for all, once


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
