"""The application in process, over a real Valkey; and, for the tests that need answers, a real worker process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from service import PART, api_client

from deploy.embedded import EmbeddedValkey
from worker import status
from worker.settings import Settings

WORKER_START_S = 120


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def settings(valkey: EmbeddedValkey, tmp_path: Path) -> Settings:
    return Settings(redis_url=valkey.url, data_dir=tmp_path)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(settings) as client:
        yield client


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Redis]:
    """A connection of the test's own to the server that the application uses."""
    async with Redis.from_url(str(settings.redis_url)) as connection:
        yield connection


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of a server that a real worker process serves; one for the whole run."""
    folder = tmp_path_factory.mktemp("served")
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics_port = free.getsockname()[1]
    with EmbeddedValkey(folder / "valkey", folder / "v.sock") as server:
        environment = os.environ | {
            "FIELDCAST_REDIS_URL": server.url,
            "FIELDCAST_MODEL": "smollm2-135m",
            "FIELDCAST_WORKER_METRICS_PORT": str(metrics_port),
        }
        with (folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-c", PART.format("main")], env=environment, stdout=log, stderr=log
            )
        try:
            asyncio.run(_until_alive(server.url, worker, folder / "worker.log"))
            yield Settings(redis_url=server.url, model="smollm2-135m", worker_metrics_port=metrics_port)
        finally:
            worker.terminate()
            worker.wait(60)


async def _until_alive(url: str, worker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WORKER_START_S
    async with Redis.from_url(url) as redis:
        while not await status.workers(redis):
            if worker.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the worker did not start: {log.read_text()[-2000:]}")
            await asyncio.sleep(0.1)
