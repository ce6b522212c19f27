"""Queueing a job again by hand: what failed or was cancelled gets another life, and nothing of its old one counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from job_history import ended_once
from queue_client import Client, Part, ids_in, queued_ids, until
from redis import Redis
from redis.exceptions import OutOfMemoryError
from scripted import Scripted

from worker import documents, jobs, keys
from worker.batch_worker import BatchWorker
from worker.deliveries import PENDING, delivery_id
from worker.job_record import Job
from worker.jobs import RequeueRefused, Webhook

Drain = Callable[..., BatchWorker]
StartWorker = Callable[..., Part]


def requeue(client: Client, job: Job) -> Job:
    again = client.call(jobs.requeue, job.id)
    assert again is not None
    return again


def quarantined(client: Client, start_worker: StartWorker, context: str) -> Job:
    """A job that has crashed two workers; the third, which put it away, is gone too."""
    job = client.submit(context)
    for _ in range(2):
        part = start_worker()
        until(lambda part=part: part.calls)
        part.process.kill()
        part.process.wait()
    part = start_worker()
    [ended] = client.until_ended([job])
    part.process.terminate()
    assert part.process.wait(90) == 0
    return ended


def test_a_quarantined_job_is_not_tried_again_by_itself_but_by_hand(
    redis: Redis, client: Client, start_worker: StartWorker, drain: Drain, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = quarantined(client, start_worker, f"hold {gate}")
    assert job.error is not None
    assert job.error["type"] == "quarantined"
    gate.touch()
    worker = drain()
    worker.run_maintenance_tasks()
    assert worker._runner.calls == []
    assert client.fetch(job) == job

    again = requeue(client, job)
    assert (again.status, again.error, again.finished_at, again.expires_at) == ("queued", None, None, None)
    assert (again.attempts, again.queue_position) == (2, 1)
    assert not redis.exists(keys.CRASHES)
    drain()
    [ended] = ended_once(redis, client, [job], most_attempts=3)
    assert (ended.status, ended.attempts) == ("completed", 3)


class AtFirst(Scripted):
    """Raises in its first call."""

    def answer(self, questions):  # type: ignore[no-untyped-def]
        if not self.calls:
            self.calls.append([])
            raise RuntimeError("at first")
        return super().answer(questions)


def test_a_failed_job_has_its_new_result_alone(redis: Redis, client: Client, drain: Drain) -> None:
    job = client.submit("fine", webhook=Webhook("https://example.com/", ("job.completed", "job.failed"), None))
    drain(AtFirst())
    assert client.status(job) == "failed"
    requeue(client, job)
    assert client.fetch(job).error is None
    drain()
    [ended] = ended_once(redis, client, [job])
    assert (ended.status, ended.attempts) == ("completed", 2)
    assert ids_in(redis, PENDING) == [delivery_id(job.id, "job.failed"), delivery_id(job.id, "job.completed", 1)]


def test_each_end_of_a_job_is_told(redis: Redis, client: Client, drain: Drain) -> None:
    job = client.submit("raise", webhook=Webhook("https://example.com/", ("job.failed",), None))
    drain()
    requeue(client, job)
    drain()
    assert ids_in(redis, PENDING) == [delivery_id(job.id, "job.failed"), delivery_id(job.id, "job.failed", 1)]


@pytest.mark.parametrize("lane", ["bulk", "interactive"])
def test_it_waits_behind_its_lane_and_costs_what_it_did(lane: str, redis: Redis, client: Client, drain: Drain) -> None:
    job = client.submit("unwanted", lane=lane)
    cost = redis.hget(keys.COSTS, job.id)
    client.cancel(job)
    other, same = client.submit("other", lane="bulk"), client.submit("same", lane=lane)
    requeue(client, job)
    assert redis.hget(keys.COSTS, job.id) == cost
    worker = drain(batch_rows=1)
    after = ["other", "same", "unwanted"] if lane == "bulk" else ["same", "unwanted", "other"]
    assert [context for [context] in worker._runner.calls] == after
    ended_once(redis, client, [job, other, same])


def test_its_document_is_kept_for_it_again(redis: Redis, client: Client) -> None:
    job = client.submit("unwanted", result_ttl_s=60)
    client.cancel(job)
    context = documents.context_id("unwanted")
    assert redis.ttl(keys.document(context)) <= 60
    requeue(client, job)
    assert redis.ttl(keys.document(context)) > 60
    assert redis.ttl(keys.job(job.id)) == -1
    assert redis.smembers(keys.document_users(context)) == {job.id.encode()}


def test_a_job_whose_document_has_expired_is_refused(redis: Redis, client: Client) -> None:
    job = client.submit("unwanted")
    cancelled = client.cancel(job)
    redis.delete(keys.document(documents.context_id("unwanted")))
    with pytest.raises(RequeueRefused) as refusal:
        requeue(client, job)
    assert refusal.value.type == "document_expired"
    assert client.fetch(job) == cancelled
    assert queued_ids(redis) == []


def test_a_job_that_has_not_failed_is_refused(redis: Redis, client: Client, drain: Drain) -> None:
    job = client.submit("fine")
    for status in ("queued", "completed"):
        before = client.fetch(job)
        assert before.status == status
        with pytest.raises(RequeueRefused) as refusal:
            requeue(client, job)
        assert refusal.value.type == "job_not_failed"
        assert client.fetch(job) == before
        drain()


def test_a_job_whose_run_goes_on_is_refused_until_it_is_over(
    redis: Redis, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = client.submit(f"hold {gate}")
    start_worker()
    until(lambda: client.status(job) == "in_progress")
    client.cancel(job)
    with pytest.raises(RequeueRefused) as refusal:
        requeue(client, job)
    assert refusal.value.type == "job_still_running"
    gate.touch()
    until(lambda: not redis.exists(keys.STARTED))
    requeue(client, job)
    [ended] = ended_once(redis, client, [job])
    assert (ended.status, ended.attempts) == ("completed", 2)


def test_a_job_that_was_cancelled_while_it_was_claimed_is_in_one_place(
    redis: Redis, client: Client, new_worker: Callable[..., BatchWorker]
) -> None:
    job = client.submit("unwanted")
    worker = new_worker()
    redis.sadd(keys.SLOTS, "mac")
    claimed = worker._claims.take()
    client.cancel(job)
    requeue(client, job)
    assert worker._transactions.start(claimed) == []
    assert worker._claims.give_back() == 0
    assert queued_ids(redis) == [job.id]


def test_a_full_server_takes_no_old_jobs_either(redis: Redis, client: Client) -> None:
    job = client.submit("unwanted")
    cancelled = client.cancel(job)
    redis.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        requeue(client, job)
    assert client.fetch(job) == cancelled


@pytest.mark.parametrize("job_id", [f"{'0' * 16}-{'0' * 32}", "", "no id", "*"])
def test_an_unknown_id_is_none(job_id: str, redis: Redis, client: Client) -> None:
    assert client.call(jobs.requeue, job_id) is None
    assert redis.dbsize() == 0
