"""The network between worker and Redis is cut, falls silent or is slow: every job still ends once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from job_history import assert_all_completed, ended_once
from proxy import Proxy
from queue_client import Client, Part, until
from redis import Redis

from worker import keys
from worker.job_record import Job

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

QUICK = {"redis_timeout_s": 2, "lease_s": 4, "heartbeat_s": 0.5}


@pytest.fixture
def proxy(valkey: EmbeddedValkey) -> Iterator[Proxy]:
    with Proxy(valkey.socket_path) as proxy:
        yield proxy


@pytest.fixture
def worker(proxy: Proxy, start_worker: Callable[..., Part], redis: Redis) -> Part:
    """A worker behind the proxy, ready."""
    part = start_worker(redis_url=proxy.url, **QUICK)
    until(lambda: redis.exists(keys.worker("mac")))
    return part


def test_cut_while_idle_and_while_running(
    redis: Redis, client: Client, worker: Part, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = tmp_path_factory.mktemp("gate") / "gate"
    proxy.cut()
    jobs = client.submit_all([f"hold {gate}", "fine"])
    until(lambda: client.status(jobs[0]) == "in_progress")
    proxy.cut()
    gate.touch()
    assert_all_completed(ended_once(redis, client, jobs))
    assert worker.process.poll() is None


def test_silent_while_a_batch_ends(
    redis: Redis, client: Client, worker: Part, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The end is sent, times out, is sent again over a new connection; the first arrives late or never was lost."""
    gate = tmp_path_factory.mktemp("gate") / "gate"
    jobs = client.submit_all([f"hold {gate}", "fine"])
    until(lambda: client.status(jobs[0]) == "in_progress")
    proxy.hold()
    gate.touch()
    until(lambda: "redis_lost" in worker.log)
    proxy.release()
    assert_all_completed(ended_once(redis, client, jobs))
    assert worker.process.poll() is None


def test_silent_while_jobs_come_in(redis: Redis, client: Client, worker: Part, proxy: Proxy) -> None:
    proxy.hold()
    jobs = client.submit_all(["fine"] * 5)
    until(lambda: "redis_lost" in worker.log)
    proxy.release()
    assert_all_completed(ended_once(redis, client, jobs))


def test_silent_longer_than_the_lease_while_another_worker_lives(
    redis: Redis,
    client: Client,
    worker: Part,
    proxy: Proxy,
    start_worker: Callable[..., Part],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    gate = tmp_path_factory.mktemp("gate") / "gate"
    jobs = client.submit_all([f"hold {gate}", "fine"])
    until(lambda: client.status(jobs[0]) == "in_progress")
    proxy.hold()
    start_worker(slot="other", **QUICK)
    until(lambda: not redis.exists(keys.owner("mac")))
    gate.touch()
    assert_all_completed(ended_once(redis, client, jobs))
    proxy.release()
    time.sleep(1)  # what the first one has to say arrives now
    assert [redis.xlen(keys.results(job.id)) for job in jobs] == [1, 1]


def test_slow(redis: Redis, client: Client, worker: Part, proxy: Proxy) -> None:
    proxy.delay_s = 0.2
    assert_all_completed(ended_once(redis, client, client.submit_all(["fine"] * 40)))


def test_whatever_the_network_does(seed: int, redis: Redis, client: Client, worker: Part, proxy: Proxy) -> None:
    chance = random.Random(seed)
    jobs: list[Job] = []
    for _ in range(8):
        jobs += client.submit_all([f"sleep {chance.choice([0, 0, 0.1])} {chance.random()}" for _ in range(4)])
        fault = chance.choice(["cut", "hold", "slow", "none"])
        if fault == "cut":
            proxy.cut()
        elif fault == "hold":
            proxy.hold()
        elif fault == "slow":
            proxy.delay_s = 0.1
        time.sleep(chance.uniform(0, 3))
        proxy.release()
        proxy.delay_s = 0
    assert_all_completed(ended_once(redis, client, jobs, most_attempts=9))
    assert worker.process.poll() is None
