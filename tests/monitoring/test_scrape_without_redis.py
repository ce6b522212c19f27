"""The API's `/metrics` answers also while Redis does not, without the gauges that only Redis could tell."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from service import api_client

from worker.settings import Settings


def test_queue_gauges_are_left_out_not_zero(tmp_path: Path) -> None:
    async def scrape() -> httpx.Response:
        async with api_client(Settings(data_dir=tmp_path, redis_url=f"unix://{tmp_path}/none.sock")) as client:
            return await client.get("/metrics")

    answer = asyncio.run(scrape())
    assert answer.status_code == 200
    assert "fieldcast_queue_jobs" not in answer.text
    assert "fieldcast_webhook_pending" not in answer.text
    assert "fieldcast_http_requests_total" in answer.text
