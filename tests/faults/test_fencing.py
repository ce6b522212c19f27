"""A worker that lost its lease cannot start, end or give back a job that another worker has by now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_client import Client, ids_in, queued_ids
from redis import Redis
from worker_side import Side, expire_leases

from worker import keys
from worker.batch_worker import BatchWorker
from worker.job_record import Job
from worker.running import Running


@pytest.fixture
def first(redis: Redis) -> Side:
    return Side(redis, "first")


@pytest.fixture
def second(redis: Redis) -> Side:
    return Side(redis, "second")


def overtaken(redis: Redis, first: Side, second: Side) -> list[Running]:
    """What `first` started and `second` queued again, because the lease was over."""
    slow = first.start()
    expire_leases(redis)
    assert second.executions.recover().requeued == 1
    return slow


def results_of(redis: Redis, job: Job) -> int:
    return int(redis.xlen(keys.results(job.id)))


def test_the_end_of_a_job_that_another_worker_ended_is_dropped(
    redis: Redis, client: Client, first: Side, second: Side
) -> None:
    job = client.submit("fine")
    slow = overtaken(redis, first, second)
    again = second.start()
    assert second.finish(again, "second") == ["stored"]
    assert first.finish(slow, "first") == ["lost"]
    ended = client.fetch(job)
    assert (ended.status, ended.result, ended.attempts) == ("completed", {"by": "second"}, 2)
    assert results_of(redis, job) == 1
    assert ids_in(redis, keys.STARTED) == []


def test_the_end_of_a_job_that_another_worker_runs_is_dropped_and_does_not_disturb_it(
    redis: Redis, client: Client, first: Side, second: Side
) -> None:
    job = client.submit("fine")
    slow = overtaken(redis, first, second)
    again = second.start()
    assert first.finish(slow, "first") == ["lost"]
    first.executions.give_back(slow)
    assert client.status(job) == "in_progress"
    assert queued_ids(redis) == []
    assert second.finish(again, "second") == ["stored"]
    assert client.fetch(job).result == {"by": "second"}


def test_the_end_of_a_job_that_waits_again_is_dropped(redis: Redis, client: Client, first: Side, second: Side) -> None:
    job = client.submit("fine")
    slow = overtaken(redis, first, second)
    assert first.finish(slow, "first") == ["lost"]
    assert client.fetch(job).status == "queued"
    assert queued_ids(redis) == [job.id]


def test_an_end_whose_answer_was_lost_may_be_stored_again(redis: Redis, client: Client, first: Side) -> None:
    job = client.submit("fine")
    running = first.start()
    assert first.finish(running, "first") == ["stored"]
    assert first.finish(running, "first") == ["stored"]
    assert results_of(redis, job) == 1


def test_a_claim_that_was_given_back_for_us_cannot_be_started(
    redis: Redis, client: Client, first: Side, second: Side
) -> None:
    job = client.submit("fine")
    claimed = first.claims.take()
    assert second.claims.give_back("first") == 1  # our lease had run out
    assert first.executions.start(claimed) == []
    assert client.status(job) == "queued"
    again = second.start()
    assert first.executions.start(claimed) == []
    assert client.status(job) == "in_progress"
    assert second.finish(again, "second") == ["stored"]
    assert client.fetch(job).attempts == 1


def test_a_slot_s_claims_are_given_back_by_its_owner_only(
    redis: Redis, client: Client, first: Side, second: Side
) -> None:
    job = client.submit("fine")
    redis.set(keys.owner("first"), first.name)
    claimed = first.claims.take()
    assert second.claims.give_back("first") == 0
    assert [entry.id for entry in first.executions.start(claimed)] == [job.id]


def test_a_worker_that_never_got_the_slot_leaves_its_owner_s_claims_alone(
    redis: Redis, client: Client, first: Side, new_worker: Callable[..., BatchWorker]
) -> None:
    client.submit("fine")
    redis.set(keys.owner("first"), "another host|1|first.name")
    claimed = first.claims.take()
    late = new_worker(slot="first")
    late._stop()  # SIGTERM while it waits for the slot
    late.work(burst=True, logging_level="WARNING")
    assert ids_in(redis, keys.claimed("first")) == claimed
    assert len(first.executions.start(claimed)) == 1


def test_a_recovery_that_looked_before_another_acted_leaves_the_new_run_alone(
    redis: Redis, client: Client, first: Side, second: Side
) -> None:
    job = client.submit("fine")
    first.start()
    expire_leases(redis)
    [entry] = ids_in(redis, keys.STARTED)
    lease_end = redis.zscore(keys.STARTED, entry)
    second.executions.recover()
    again = second.start()
    third = Side(redis, "third").executions
    assert third._requeue_one(job.id, entry, second.name, count=True, lease_end=lease_end) == 0
    assert client.status(job) == "in_progress"
    assert second.finish(again, "second") == ["stored"]


def test_an_id_that_stands_in_the_queue_twice_is_run_once(redis: Redis, client: Client, first: Side) -> None:
    job = client.submit("fine")
    redis.rpush(keys.QUEUE_LIST, job.id)
    running = first.start()
    assert [entry.id for entry in running] == [job.id]
    assert first.start() == []
    assert first.finish(running, "first") == ["stored"]
    assert (client.fetch(job).status, results_of(redis, job)) == ("completed", 1)
    assert ids_in(redis, keys.STARTED) == ids_in(redis, keys.claimed("first")) == queued_ids(redis) == []
