"""Redis is there but takes no writes for a while: too few replicas follow it, or it became one itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from job_history import assert_all_completed, ended_once
from queue_client import Client, Held, Part, until
from redis import Redis
from redis.exceptions import RedisError
from service import api_client, free_ports

from worker import keys
from worker.settings import Settings

Switch = Callable[[Redis], object]

FAULTS: dict[str, tuple[Switch, Switch]] = {  # and what ends it
    "too few replicas": (
        lambda redis: redis.config_set("min-replicas-to-write", 1),
        lambda redis: redis.config_set("min-replicas-to-write", 0),
    ),
    "a replica": (
        lambda redis: redis.replicaof("127.0.0.1", *free_ports(1)),
        lambda redis: redis.replicaof("NO", "ONE"),
    ),
}


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> tuple[Switch, Switch]:
    return FAULTS[request.param]


def test_an_idle_worker_waits_for_it(
    fault: tuple[Switch, Switch], redis: Redis, client: Client, start_worker: Callable[..., Part]
) -> None:
    begin, end = fault
    worker = start_worker()
    until(lambda: redis.info("clients")["blocked_clients"])
    begin(redis)
    until(lambda: "redis_lost" in worker.log)
    end(redis)
    assert_all_completed(ended_once(redis, client, client.submit_all(["fine", "fine too"])))
    assert worker.process.poll() is None


def test_a_batch_that_ends_then_is_stored_later(
    fault: tuple[Switch, Switch], redis: Redis, client: Client, held: Held
) -> None:
    begin, end = fault
    waiting = client.submit("fine")
    begin(redis)
    held.release()
    until(lambda: "redis_lost" in held.worker.log)
    end(redis)
    ended = ended_once(redis, client, [held.first, held.second, waiting])
    assert_all_completed(ended)
    assert [job.attempts for job in ended] == [1, 1, 1]
    assert held.worker.process.poll() is None


def test_the_api_says_so_and_accepts_nothing(
    fault: tuple[Switch, Switch], redis: Redis, settings_for: Callable[..., Settings]
) -> None:
    begin, end = fault

    async def over_http() -> None:
        body = {"context": "fine", "schema": {"angry": {"type": "boolean"}}}
        async with api_client(settings_for()) as http:
            begin(redis)
            refused = await http.post("/v1/jobs", json=body)
            assert (refused.status_code, refused.json()["type"]) == (503, "redis_unavailable")
            assert redis.exists(keys.QUEUE_LIST) == 0
            end(redis)
            assert (await http.post("/v1/jobs", json=body)).status_code == 202

    asyncio.run(over_http())


def test_another_error_of_redis_is_not_taken_for_it(redis: Redis) -> None:
    from worker.connection import is_unavailable

    redis.set("words", "MISCONF NOREPLICAS UNBLOCKED")
    with pytest.raises(RedisError) as caught, redis.pipeline() as pipeline:
        pipeline.incrby("words", 1).lpush("words", "MISCONF ").execute()
    assert not is_unavailable(caught.value)
