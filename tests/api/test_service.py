"""The other routes: presets, models, health, the OpenAPI document, and errors that belong to no route."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from service import api_client

import presets
from worker import tenants
from worker.settings import Settings

pytestmark = pytest.mark.anyio


def test_the_application_imports_neither_mlx_nor_numpy() -> None:
    code = "import sys, api.app; print(sorted({m.split('.')[0] for m in sys.modules} & {'mlx', 'mlx_lm', 'numpy'}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_presets(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/presets")).json()["presets"]
    assert [preset["name"] for preset in listed] == presets.names()
    for summary in listed:
        preset = (await client.get(summary["links"]["self"])).json()
        assert preset["schema"] == presets.load(summary["name"]).schema.to_dict()
        assert len(preset["schema"]) == summary["fields"]
        assert preset["samples"]


@pytest.mark.parametrize("name", ["nothing", "..%2Fpresets%2Fsupport_triage", "support_triage.json", "%00"])
async def test_an_unknown_preset_is_404(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/v1/presets/{name}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_no_worker_means_no_model_and_not_ready(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models")).json() == {"models": []}
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["worker"])
    assert (await client.get("/healthz")).json()["status"] == "ok"


async def test_without_redis_everything_that_needs_it_is_503(tmp_path: Path) -> None:
    async with api_client(Settings(redis_url=f"unix://{tmp_path}/none.sock", data_dir=tmp_path)) as client:
        job = {"context": "x", "preset": "support_triage"}
        path = f"/v1/jobs/{tenants.tag(tenants.DEFAULT)}01234567-{'0' * 32}"
        answers = [
            await client.post("/v1/jobs", json=job),
            await client.get(path),
            await client.get(path, headers={"prefer": "wait=20"}),
            await client.get("/v1/models"),
            ready := await client.get("/readyz"),
        ]
        assert ready.json()["missing"] == ["redis"]
        for answer in answers:
            assert answer.status_code == 503, answer.request.url
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["content-type"] == "application/problem+json"
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/presets")).status_code == 200
        assert (await client.post("/v1/jobs", json={"context": ""})).status_code == 422


async def test_it_stops_at_whatever_point_of_its_start(settings: Settings) -> None:
    for turns in range(30):  # of the event loop, in which the subscription is being made
        async with asyncio.timeout(20), api_client(settings):
            for _ in range(turns):
                await asyncio.sleep(0)


async def test_unknown_paths_and_methods(client: httpx.AsyncClient) -> None:
    for method, path, status in [
        ("GET", "/nothing", 404),
        ("GET", "/v1/jobs/a/b/c", 404),
        ("DELETE", "/v1/presets", 405),
        ("PUT", "/v1/jobs", 405),
        ("GET", "/v1/jobs/x/cancel", 405),
    ]:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        assert status != 405 or answer.headers["allow"]


async def test_metrics_are_served(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert "fieldcast_queue_jobs" in answer.text


async def test_the_openapi_document_holds_together(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert {
        "/v1/jobs",
        "/v1/jobs/{job_id}",
        "/v1/jobs/{job_id}/cancel",
        "/v1/jobs/{job_id}/requeue",
        "/v1/models",
        "/v1/presets",
    } <= set(document["paths"])

    def references(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [ref for value in node.values() for ref in references(value)]
        return [ref for item in node for ref in references(item)] if isinstance(node, list) else []

    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    found = set(references(document))
    assert "#/components/schemas/JobRequest" in found
    assert found <= schemas
