"""A document is stored once for all jobs that ask about it, and kept exactly as long as one of them needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_client import Client, ids_in, queued_ids
from redis import Redis

from worker import documents, keys
from worker.batch_worker import BatchWorker

Drain = Callable[..., BatchWorker]
TEXT = "One text, asked about many times."
TTL_S = 500


@pytest.fixture
def document() -> str:
    return keys.document(documents.context_id(TEXT))


@pytest.fixture
def users() -> str:
    return keys.document_users(documents.context_id(TEXT))


def test_many_jobs_store_their_document_once(redis: Redis, client: Client, document: str, users: str) -> None:
    jobs = client.submit_all([TEXT] * 10)
    assert redis.get(document) == TEXT.encode()
    assert redis.scard(users) == 10
    assert len({job.id[:16] for job in jobs}) == 1
    holding = [key for key in redis.scan_iter() if TEXT.encode() in redis.dump(key)]
    assert holding == [document.encode()]


def test_it_is_kept_while_a_job_waits(redis: Redis, client: Client, drain: Drain, document: str, users: str) -> None:
    first, second = client.submit_all([TEXT] * 2, result_ttl_s=TTL_S)
    client.cancel(first)
    assert redis.ttl(document) > TTL_S
    assert redis.smembers(users) == {second.id.encode()}


@pytest.mark.parametrize("deed", ["fine", "raise"])
def test_it_expires_after_the_last_job_has_ended(deed: str, redis: Redis, client: Client, drain: Drain) -> None:
    client.submit_all([deed] * 2, result_ttl_s=TTL_S)
    drain()
    document = keys.document(documents.context_id(deed))
    assert TTL_S - 60 < redis.ttl(document) <= TTL_S
    assert not redis.exists(keys.document_users(documents.context_id(deed)))


def test_it_expires_after_the_last_job_was_cancelled(redis: Redis, client: Client, document: str, users: str) -> None:
    for job in client.submit_all([TEXT] * 2, result_ttl_s=TTL_S):
        client.cancel(job)
    assert 0 < redis.ttl(document) <= TTL_S
    assert not redis.exists(users)


def test_it_is_let_go_by_jobs_that_were_refused(redis: Redis, client: Client, drain: Drain, document: str) -> None:
    job = client.submit(TEXT, result_ttl_s=TTL_S)
    redis.hset(keys.job(job.id), "data", "garbage")
    drain()
    assert client.status(job) == "failed"
    assert 0 < redis.ttl(document) <= TTL_S


def test_a_new_job_in_its_last_time_keeps_it(
    redis: Redis, client: Client, drain: Drain, document: str, users: str
) -> None:
    client.submit(TEXT, result_ttl_s=TTL_S)
    drain()
    assert redis.ttl(document) <= TTL_S
    late = client.submit(TEXT, result_ttl_s=TTL_S)
    assert redis.ttl(document) > TTL_S
    assert redis.smembers(users) == {late.id.encode()}
    drain()
    assert client.status(late) == "completed"


def test_nothing_else_of_a_job_outlives_its_result(redis: Redis, client: Client, drain: Drain) -> None:
    done, failed, cancelled = client.submit_all(["fine", "raise", "unwanted"], result_ttl_s=TTL_S)
    client.cancel(cancelled)
    drain()
    for job in (done, failed, cancelled):
        belonging = [key for key in redis.keys(f"*{job.id}*") if redis.ttl(key) == -1]
        assert belonging == []
    assert queued_ids(redis) == ids_in(redis, keys.STARTED) == []
    for gone in (keys.COSTS, keys.CRASHES):
        assert not redis.exists(gone)
