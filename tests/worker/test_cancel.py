"""Cancelling a job at every stage of its life."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from job_history import ended_once
from queue_client import Client, Held, ids_in, queued_ids, until
from redis import Redis

from worker import jobs, keys
from worker.batch_worker import BatchWorker

Drain = Callable[..., BatchWorker]
UNKNOWN = f"{'0' * 16}-{'0' * 32}"


def test_a_queued_job_leaves_the_queue_and_is_never_run(redis: Redis, client: Client, drain: Drain) -> None:
    job, other = client.submit_all(["unwanted", "fine"])
    cancelled = client.cancel(job)
    assert cancelled.status == "cancelled"
    assert cancelled.finished_at is not None
    assert (cancelled.result, cancelled.error, cancelled.queue_position) == (None, None, None)
    assert queued_ids(redis) == [other.id]
    assert drain()._runner.calls == [["fine"]]
    assert client.fetch(job) == cancelled


def test_a_claimed_job_that_has_not_started_is_not_run(
    redis: Redis, client: Client, new_worker: Callable[..., BatchWorker]
) -> None:
    job, other = client.submit_all(["unwanted", "fine"])
    worker = new_worker()
    claimed = worker._claims.take()
    cancelled = client.cancel(job)
    worker.execute_job(claimed, worker.queues[0])
    assert worker._runner.calls == [["fine"]]
    assert client.fetch(job) == cancelled
    assert (cancelled.status, cancelled.attempts) == ("cancelled", 0)
    assert client.status(other) == "completed"
    assert ids_in(redis, keys.claimed("mac")) == ids_in(redis, keys.STARTED) == []


def test_a_claimed_job_that_was_cancelled_does_not_come_back(
    redis: Redis, client: Client, new_worker: Callable[..., BatchWorker]
) -> None:
    job = client.submit("unwanted")
    worker = new_worker()
    worker._claims.take()
    client.cancel(job)
    assert worker._claims.give_back() == 0
    assert queued_ids(redis) == []


def test_a_running_job_s_result_is_dropped_and_its_batch_mates_end(redis: Redis, client: Client, held: Held) -> None:
    cancelled = client.cancel(held.first)
    assert cancelled.status == "cancelled"
    held.release()
    job, other = ended_once(redis, client, [held.first, held.second])
    assert job == cancelled
    assert other.status == "completed"


@pytest.mark.parametrize("deed", ["fine", "raise"])
def test_a_job_that_has_ended_stays_as_it_is(deed: str, client: Client, drain: Drain) -> None:
    job = client.submit(deed)
    drain()
    ended = client.fetch(job)
    assert client.cancel(job) == ended
    assert client.fetch(job) == ended


def test_cancelling_twice_changes_nothing(redis: Redis, client: Client) -> None:
    job = client.submit("unwanted")
    first = client.cancel(job)
    assert client.cancel(job) == first
    assert ids_in(redis, keys.CANCELED) == [job.id]


@pytest.mark.parametrize("job_id", [UNKNOWN, "", "no id", "*"])
def test_an_unknown_id_is_none(job_id: str, redis: Redis, client: Client) -> None:
    assert client.call(jobs.cancel, job_id) is None
    assert client.call(jobs.fetch, job_id) is None
    assert redis.dbsize() == 0


def test_a_cancelled_job_and_its_place_in_the_registry_expire(redis: Redis, client: Client, drain: Drain) -> None:
    job, kept = client.submit("unwanted", result_ttl_s=5), client.submit("unwanted too", result_ttl_s=3600)
    client.cancel(job)
    client.cancel(kept)
    assert 0 < redis.ttl(keys.job(job.id)) <= 5
    redis.zincrby(keys.CANCELED, -6, job.id)  # six seconds later
    drain()
    assert ids_in(redis, keys.CANCELED) == [kept.id]


def test_everybody_is_told(redis: Redis, client: Client) -> None:
    job = client.submit("unwanted")
    with redis.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(keys.DONE_CHANNEL)
        listener.get_message(timeout=10)
        client.cancel(job)
        message = until(lambda: listener.get_message(timeout=1))
        assert job.id.encode() in message["data"]


def test_a_crash_suspect_that_is_cancelled_is_forgotten(redis: Redis, client: Client) -> None:
    job = client.submit("unwanted")
    redis.hset(keys.CRASHES, job.id, 1)
    client.cancel(job)
    assert redis.hlen(keys.CRASHES) == redis.hlen(keys.COSTS) == 0
