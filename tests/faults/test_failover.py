"""Redis with Sentinel: API and worker follow the master, and what was acknowledged ends on the new one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_history import assert_all_completed, ended_once
from queue_client import ROOT, Client, Part, until
from redis import Redis
from sentinel import SERVICE, Watched
from service import PART, api_client

from worker import keys
from worker.connection import connect
from worker.settings import Settings

BODY = {"schema": {"angry": {"type": "boolean"}}}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path) as servers:
        yield servers


@pytest.fixture
def master(watched: Watched) -> Iterator[Redis]:
    with connect(watched.url, socket_timeout=2) as redis:
        yield redis


@pytest.mark.parametrize("way", ["planned", "kill -9"])
def test_jobs_go_on_at_the_new_master(
    way: str, watched: Watched, master: Redis, start_worker: Callable[..., Part], tmp_path: Path
) -> None:
    client, gate = Client(watched.url), tmp_path / "gate"
    held = client.submit_all([f"hold {gate}", "fine"])
    worker = start_worker(redis_url=watched.url, batch_rows=2)
    until(lambda: client.status(held[1]) == "in_progress")

    async def over_http() -> list[str]:
        async with api_client(Settings(redis_url=watched.url, data_dir=tmp_path)) as http:

            async def post(context: str) -> Any:
                answer = await http.post("/v1/jobs", json={"context": context, **BODY})
                return answer.json()["id"] if answer.status_code == 202 else None

            before = await post("waiting")
            master.set("after", "before")
            assert master.wait(1, 10_000) == 1  # the replica has that, so all before it: replication is asynchronous
            await asyncio.to_thread(watched.fail_over if way == "planned" else watched.kill_master)
            while (after := await post("submitted since")) is None:
                await asyncio.sleep(0.05)
            waiting = asyncio.create_task(http.get(f"/v1/jobs/{after}", headers={"prefer": "wait=60"}))
            gate.touch()
            assert (await waiting).json()["status"] == "completed"
            return [before, after]

    jobs = [*held, *map(client.fetch, asyncio.run(over_http()))]
    ended = ended_once(master, client, jobs)
    assert_all_completed(ended)
    assert [job.attempts for job in ended] == [1] * 4
    assert worker.process.poll() is None
    until(lambda: master.exists(keys.worker("mac")))


def test_a_service_that_the_sentinels_do_not_know_is_named_at_the_start(watched: Watched, tmp_path: Path) -> None:
    url = watched.url.replace(SERVICE, "another")
    environment = {**os.environ, "FIELDCAST_REDIS_URL": url, "FIELDCAST_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PART.format("main")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no sentinel names a master of 'another'" in done.stdout
    assert "of the" not in done.stdout + done.stderr
    assert "%20the" not in done.stdout + done.stderr
