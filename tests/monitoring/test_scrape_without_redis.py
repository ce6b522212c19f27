"""The API's `/metrics` answers also while Redis does not, without the gauges that only Redis could tell."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from api.app import create_app
from worker.settings import Settings


def test_queue_gauges_are_left_out_not_zero(tmp_path: Path) -> None:
    async def scrape() -> httpx.Response:
        app = create_app(Settings(data_dir=tmp_path, redis_url=f"unix://{tmp_path}/none.sock"))
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
            return await client.get("http://127.0.0.1/metrics")

    answer = asyncio.run(scrape())
    assert answer.status_code == 200
    assert "fieldcast_queue_jobs" not in answer.text
    assert "fieldcast_webhook_pending" not in answer.text
    assert "fieldcast_http_requests_total" in answer.text
