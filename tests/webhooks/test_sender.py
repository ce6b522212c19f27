"""The sender: each event arrives at least once, on its schedule, whatever other endpoints and other senders do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from service import job_spec
from standardwebhooks import Webhook
from webhook_receiver import SECRET, Receiver, until

from worker import webhook_metrics
from worker.deliveries import DELIVERY, ENDPOINTS, QUEUE, delivery_id, endpoint_of, enqueue, pending
from worker.delivery_queue import claim
from worker.jobs import fetch, submit
from worker.settings import Settings
from worker.webhooks import PER_ENDPOINT

LEASE_S = 2.0


async def new_job(redis: Redis) -> str:
    return (await submit(redis, job_spec())).id


async def announce(
    redis: Redis, job_id: str, url: str, event: str = "job.completed", secret: str | None = SECRET
) -> str:
    async with redis.pipeline(transaction=True) as pipeline:
        enqueue(pipeline, job_id, event, url, secret)
        await pipeline.execute()
    return delivery_id(job_id, event)


async def state(redis: Redis, delivery: str) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in (await redis.hgetall(DELIVERY + delivery)).items()}


async def due(redis: Redis, delivery: str, url: str) -> float:
    due_at = await redis.zscore(QUEUE + endpoint_of(url), delivery)
    assert due_at is not None
    return float(due_at)


def attempts(outcome: str) -> float:
    value = webhook_metrics.REGISTRY.get_sample_value("fieldcast_webhook_attempts_total", {"outcome": outcome})
    assert value is not None
    return value


def test_an_event_is_sent_once_with_the_job_in_it(
    receiver: Receiver, settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        async with sending(settings_for(receiver)) as redis:
            before, job_id = attempts("succeeded"), await new_job(redis)
            delivery = await announce(redis, job_id, receiver.url())
            await until(lambda: idle(redis))
            await announce(redis, job_id, receiver.url())  # as a finish that is repeated after a crash does
            await until(lambda: idle(redis))
            (request,) = receiver.received
            event = Webhook(SECRET).verify(request.body, request.headers)
            job = await fetch(redis, job_id)
            assert job is not None
            assert event["data"] == json.loads(json.dumps(job.to_dict()))
            assert event["type"] == "job.completed"
            assert event["timestamp"].endswith("Z")
            assert request.headers["webhook-id"] == delivery
            assert attempts("succeeded") == before + 1
            kept = await state(redis, delivery)
            assert (kept["state"], kept["attempts"], kept["last_status"], kept["secret"]) == (
                "delivered",
                "1",
                "200",
                "",
            )

    asyncio.run(scenario())


def test_retries_follow_the_schedule_with_one_id_and_one_body(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        receiver = start_receiver(500, 503, 200)
        async with sending(settings_for(receiver, webhook_retry_delays_s=(0.1, 0.3))) as redis:
            await announce(redis, await new_job(redis), receiver.url(), "job.failed")
            await until(lambda: idle(redis))
            first, second, third = receiver.received
            assert second.at - first.at >= 0.1
            assert third.at - second.at >= 0.3
            assert first.body == second.body == third.body
            assert len({r.headers["webhook-id"] for r in receiver.received}) == 1
            for request in receiver.received:
                assert Webhook(SECRET).verify(request.body, request.headers)["type"] == "job.failed"

    asyncio.run(scenario())


def test_a_full_server_does_not_keep_webhooks_back(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings], sending: Any
) -> None:
    receiver = start_receiver(503, 200)

    async def scenario() -> None:
        async with sending(settings_for(receiver)) as redis:
            job_id = await new_job(redis)
            await redis.config_set("maxmemory-policy", "noeviction")
            delivery = await announce(redis, job_id, receiver.url())
            await redis.config_set("maxmemory", 1)

            async def is_delivered() -> bool:
                return (await state(redis, delivery))["state"] == "delivered"

            await until(is_delivered)
            assert (await state(redis, delivery))["attempts"] == "2"

    asyncio.run(scenario())
    assert len(receiver.received) == 2


def test_the_default_schedule_is_the_published_one() -> None:
    assert Settings().webhook_retry_delays_s == (5, 300, 1800, 7200, 18000, 36000, 36000)


@pytest.mark.parametrize(("answer", "earliest_s"), [(500, 100), ((429, {"retry-after": "300"}), 300)])
def test_a_retry_is_late_by_jitter_and_never_early(
    answer: Any,
    earliest_s: float,
    start_receiver: Callable[..., Receiver],
    settings_for: Callable[..., Settings],
    sending: Any,
) -> None:
    async def scenario() -> None:
        receiver = start_receiver(answer)
        async with sending(settings_for(receiver, webhook_retry_delays_s=(100,))) as redis:
            ids = [await announce(redis, await new_job(redis), receiver.url()) for _ in range(5)]

            async def put_back() -> bool:
                return all([(await state(redis, i)).get("attempts") == "1" for i in ids])

            await until(put_back)
            came_at = {request.headers["webhook-id"]: request.at for request in receiver.received}
            due_at = {i: await due(redis, i, receiver.url()) for i in ids}
            assert all(due_at[i] >= came_at[i] + earliest_s for i in ids)
            assert all(due_at[i] <= time.time() + earliest_s * 1.1 for i in ids)
            assert len({round(due_at[i] - came_at[i], 1) for i in ids}) > 1
            assert await pending(redis) == 5

    asyncio.run(scenario())


def test_after_the_last_retry_the_delivery_is_given_up(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        receiver = start_receiver(500)
        async with sending(settings_for(receiver)) as redis:
            delivery = await announce(redis, await new_job(redis), receiver.url())
            await until(lambda: idle(redis))
            assert len(receiver.received) == 8
            kept = await state(redis, delivery)
            assert (kept["state"], kept["attempts"]) == ("failed", "8")

    asyncio.run(scenario())


def test_410_ends_the_delivery_and_disables_the_url(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        receiver = start_receiver(410, 200)
        async with sending(settings_for(receiver)) as redis:
            for event in ("job.completed", "job.failed"):
                await announce(redis, await new_job(redis), receiver.url(), event)
                await until(lambda: idle(redis))
            assert len(receiver.received) == 1
            await announce(redis, await new_job(redis), receiver.url(path="/another"))
            await until(lambda: idle(redis))
            assert [r.path for r in receiver.received] == ["/hook", "/another"]

    asyncio.run(scenario())


def test_a_refused_address_ends_the_delivery(
    receiver: Receiver, settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        async with sending(settings_for(receiver, webhook_allowed_private_hosts=())) as redis:
            before = attempts("address_refused")
            await announce(redis, await new_job(redis), receiver.url())
            await until(lambda: idle(redis))
            assert receiver.received == []
            assert attempts("address_refused") == before + 1

    asyncio.run(scenario())


def test_a_job_without_a_secret_is_signed_with_the_service_s(
    receiver: Receiver, settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        async with sending(settings_for(receiver, webhook_secret=SECRET)) as redis:
            await announce(redis, await new_job(redis), receiver.url(), secret=None)
            await until(lambda: idle(redis))
            Webhook(SECRET).verify(receiver.received[0].body, receiver.received[0].headers)
        async with sending(settings_for(receiver)) as redis:
            await announce(redis, await new_job(redis), receiver.url(), secret=None)
            await until(lambda: idle(redis))
            assert len(receiver.received) == 1  # nothing is sent unsigned

    asyncio.run(scenario())


def test_a_job_that_is_gone_is_not_announced(
    receiver: Receiver, settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        async with sending(settings_for(receiver)) as redis:
            await announce(redis, "0" * 16 + "-" + "0" * 32, receiver.url())
            await until(lambda: idle(redis))
            assert receiver.received == []

    asyncio.run(scenario())


def test_a_dead_endpoint_does_not_slow_another(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings], sending: Any
) -> None:
    async def scenario() -> None:
        dead, well = start_receiver("hang"), start_receiver(200)
        async with sending(settings_for(dead, well)) as redis:
            jobs = [await new_job(redis) for _ in range(3 * PER_ENDPOINT)]
            held = [await new_job(redis) for _ in range(5 * PER_ENDPOINT)]
            for one in held:
                await announce(redis, one, dead.url())
            for one in jobs:
                await announce(redis, one, well.url())
            await until(lambda: len(well.received) == len(jobs))
            await until(lambda: len(dead.received) == PER_ENDPOINT)  # all of them unanswered until they are let go
            dead.release()

    asyncio.run(scenario())


def test_what_a_dead_sender_claimed_is_sent_when_its_lease_ends(
    receiver: Receiver, settings_for: Callable[..., Settings], sending: Any, valkey: Any
) -> None:
    async def scenario() -> None:
        redis = Redis.from_url(valkey.url)
        await announce(redis, await new_job(redis), receiver.url())
        claimed_at = time.time()
        assert len(await claim(redis, lease_s=LEASE_S, per_endpoint=8, room=8, busy={})) == 1
        assert await claim(redis, lease_s=LEASE_S, per_endpoint=8, room=8, busy={}) == []
        async with sending(settings_for(receiver)):
            await until(lambda: idle(redis))
        assert len(receiver.received) == 1
        assert receiver.received[0].at - claimed_at >= LEASE_S - 0.01
        assert not await redis.exists(ENDPOINTS)
        await redis.aclose()

    asyncio.run(scenario())


async def idle(redis: Redis) -> bool:
    return await pending(redis) == 0
