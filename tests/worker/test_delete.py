"""Deleting a job at every stage of its life: it, its result and its document are gone, and nobody else's are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from job_history import ended_once
from queue_client import Client, Held
from redis import Redis
from worker_side import expire_leases

from worker import documents, jobs, keys
from worker.batch_worker import BatchWorker
from worker.job_record import Job

Drain = Callable[..., BatchWorker]


def left_of(redis: Redis, job: Job) -> list[bytes]:
    """Keys that belong to the job, and registries, lists, sets and hashes that name it."""
    read = {
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"set": redis.smembers,
        b"zset": lambda key: redis.zrange(key, 0, -1),
        b"hash": redis.hgetall,
        b"string": redis.get,
        b"stream": redis.xrange,
    }
    return [key for key in redis.scan_iter() if job.id.encode() in key or job.id in str(read[redis.type(key)](key))]


def delete(client: Client, job: Job) -> Job | None:
    return client.call(jobs.delete, job.id)


def test_a_queued_job_is_never_run_and_leaves_nothing(redis: Redis, client: Client, drain: Drain) -> None:
    job, other = client.submit_all(["unwanted", "fine"])
    assert delete(client, job) == job
    assert client.call(jobs.fetch, job.id) is None
    assert left_of(redis, job) == []
    assert not redis.exists(keys.document(documents.context_id("unwanted")))
    assert drain()._runner.calls == [["fine"]]
    assert client.status(other) == "completed"


@pytest.mark.parametrize(("deed", "status"), [("fine", "completed"), ("raise", "failed"), ("cancel", "cancelled")])
def test_an_ended_job_leaves_nothing(deed: str, status: str, redis: Redis, client: Client, drain: Drain) -> None:
    job, other = client.submit_all([deed, "fine too"])
    if deed == "cancel":
        client.cancel(job)
    drain()
    gone = delete(client, job)
    assert gone is not None
    assert gone.status == status
    assert left_of(redis, job) == []
    assert not redis.exists(keys.document(documents.context_id(deed)))
    assert client.fetch(other).result is not None


def test_a_claimed_job_is_not_run(redis: Redis, client: Client, new_worker: Callable[..., BatchWorker]) -> None:
    job, _ = client.submit_all(["unwanted", "fine"])
    worker = new_worker()
    claimed = worker._claims.take()
    delete(client, job)
    worker.execute_job(claimed, worker.queues[0])
    assert worker._runner.calls == [["fine"]]
    assert left_of(redis, job) == []


def test_a_running_job_s_result_is_dropped_and_its_batch_mates_end(redis: Redis, client: Client, held: Held) -> None:
    delete(client, held.first)
    held.release()
    assert ended_once(redis, client, [held.second])[0].status == "completed"
    assert left_of(redis, held.first) == []


def test_a_deleted_job_s_crash_does_not_bring_it_back(redis: Redis, client: Client, held: Held, drain: Drain) -> None:
    delete(client, held.first)
    held.worker.process.kill()
    held.worker.process.wait()
    expire_leases(redis)
    drain()
    assert client.status(held.second) == "completed"
    # RQ's list of what the dead worker was running goes with the worker's lease.
    assert [key for key in left_of(redis, held.first) if redis.ttl(key) == -1] == []


def test_a_document_that_another_job_needs_stays(redis: Redis, client: Client, drain: Drain) -> None:
    first, second = client.submit_all(["fine"] * 2)
    delete(client, first)
    assert redis.get(keys.document(documents.context_id("fine"))) == b"fine"
    drain()
    assert client.status(second) == "completed"
    delete(client, second)
    assert not redis.exists(keys.document(documents.context_id("fine")))


def test_deleting_twice_is_none(client: Client) -> None:
    job = client.submit("unwanted")
    assert delete(client, job) is not None
    assert delete(client, job) is None


@pytest.mark.parametrize("job_id", [f"{'0' * 16}-{'0' * 32}", "", "no id", "*"])
def test_an_unknown_id_is_none(job_id: str, redis: Redis, client: Client) -> None:
    client.submit("fine")
    before = redis.dbsize()
    assert client.call(jobs.delete, job_id) is None
    assert redis.dbsize() == before
