"""From the job's end to the receiver's door, with every part a process of its own: worker, sender, receiver."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from redis.asyncio import Redis
from service import PART, SCHEMA, api_client, job_spec
from standardwebhooks import Webhook as Signer
from webhook_receiver import SECRET, Receiver, until

from worker.deliveries import enqueue, pending
from worker.jobs import submit
from worker.settings import Settings

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

ROOT = Path(__file__).parents[2]
# The lease is 30 s longer than an attempt may last; a test does not wait for that.
RUN_SENDER = "import worker.webhooks; worker.webhooks.LEASE_MARGIN_S = 0.5;" + PART.format("webhooks")


@pytest.fixture
def start(valkey: EmbeddedValkey) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a part as its own process against the test's server; ends what still runs."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str, receiver: Receiver, **settings: Any) -> subprocess.Popen[bytes]:
        given = {
            "redis_url": valkey.url,
            "worker_metrics_port": 0,
            "webhooks_metrics_port": 0,
            "webhook_allow_http": True,
            "webhook_allowed_private_hosts": json.dumps(["127.0.0.1"]),
            "webhook_allowed_ports": json.dumps([receiver.port]),
            "webhook_retry_delays_s": json.dumps([0.05] * 7),
            **settings,
        }
        environment = {**os.environ, **{f"FIELDCAST_{k.upper()}": str(v) for k, v in given.items()}}
        started.append(subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment))
        return started[-1]

    yield begin
    for process in started:
        process.send_signal(signal.SIGTERM)
    for process in started:
        process.wait(60)


async def post(client: httpx.AsyncClient, context: str, webhook: dict[str, Any]) -> str:
    body = {"context": context, "schema": SCHEMA.to_dict(), "metadata": {"ticket": "7"}, "webhook": webhook}
    answer = await client.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def has_status(client: httpx.AsyncClient, job_id: str, status: str) -> bool:
    return bool((await client.get(f"/v1/jobs/{job_id}")).json()["status"] == status)


def test_a_completed_and_a_failed_job_are_announced_and_retried(
    start: Callable[..., Any],
    start_receiver: Callable[..., Receiver],
    settings_for: Callable[..., Settings],
    valkey: EmbeddedValkey,
) -> None:
    receiver = start_receiver(500, 500, 200)

    async def scenario() -> None:
        start(PART.format("main"), receiver)
        sender = start(PART.format("webhooks"), receiver)
        webhook = {"url": receiver.url(), "secret": SECRET}
        quiet = {**webhook, "url": receiver.url(path="/quiet"), "events": ["job.failed"]}
        async with (
            api_client(settings_for(receiver, redis_url=valkey.url)) as client,
            Redis.from_url(valkey.url) as redis,
        ):
            completed = await post(client, "The server room is on fire.", webhook)
            failed = await post(client, "fire " * 30000, webhook)
            unannounced = await post(client, "All is well.", quiet)  # completes, and asked to hear of failure only
            await until(lambda: len(receiver.received) >= 4, deadline_s=120)
            await until(lambda: has_status(client, unannounced, "completed"))
            await until(lambda: idle(redis))
        events: dict[str, list[Any]] = {}
        for request in receiver.received:
            assert request.path == "/hook"
            event = Signer(SECRET).verify(request.body, request.headers)
            events.setdefault(request.headers["webhook-id"], []).append(event)
        assert sum(len(attempts) for attempts in events.values()) == 4  # two were answered 500, and came again
        assert all(attempt == attempts[0] for attempts in events.values() for attempt in attempts)
        told = {attempts[0]["data"]["id"]: attempts[0] for attempts in events.values()}
        assert set(told) == {completed, failed}
        job = told[completed]
        assert job["type"] == "job.completed"
        assert job["data"]["status"] == "completed"
        assert job["data"]["result"]["json"]["urgent"] in (True, False)
        assert job["data"]["metadata"] == {"ticket": "7"}
        job = told[failed]
        assert job["type"] == "job.failed"
        assert job["data"]["status"] == "failed"
        assert job["data"]["error"]["type"] == "context_too_long"
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(60) == 0

    asyncio.run(scenario())


def test_a_killed_sender_loses_nothing(
    start: Callable[..., Any], start_receiver: Callable[..., Receiver], valkey: EmbeddedValkey
) -> None:
    receiver = start_receiver(*["hang"] * 5, 200)

    async def scenario() -> None:
        async with Redis.from_url(valkey.url) as redis:
            jobs = [await submit(redis, job_spec()) for _ in range(5)]
            for job in jobs:
                async with redis.pipeline(transaction=True) as pipeline:
                    enqueue(pipeline, job.id, "job.completed", receiver.url(), SECRET)
                    await pipeline.execute()
            sender = start(RUN_SENDER, receiver, webhook_timeout_s=1)
            await until(lambda: len(receiver.received) == 5, deadline_s=60)  # all five are under way, unanswered
            sender.kill()
            sender.wait()
            assert await pending(redis) == 5
            start(RUN_SENDER, receiver, webhook_timeout_s=1)
            await until(lambda: idle(redis), deadline_s=60)
        first, second = receiver.received[:5], receiver.received[5:]
        assert {r.headers["webhook-id"] for r in first} == {r.headers["webhook-id"] for r in second}
        assert len(second) == 5

    asyncio.run(scenario())


async def idle(redis: Redis) -> bool:
    return await pending(redis) == 0
