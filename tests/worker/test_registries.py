"""RQ's own tools see what happened: every job is in the registry of its state and in no other, and can be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from queue_client import Client, Part, ids_in, queued_ids, until
from redis import Redis
from rq import Queue, Worker
from rq.job import Job as RQJob
from rq.job import JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer

from worker import keys
from worker.batch_worker import BatchWorker
from worker.job_record import Job
from worker.jobs import FUNCTION

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

Drain = Callable[..., BatchWorker]
StartWorker = Callable[..., Part]
AnyJob = Job | RQJob
LEASE_FIELDS = ("rq:execution:*", "rq:executions:*", "rq:worker:*:executions")


@pytest.fixture
def queue(redis: Redis) -> Queue:
    return Queue(keys.QUEUE, connection=redis, serializer=JSONSerializer)


def read(redis: Redis, job: Job) -> RQJob:
    return RQJob.fetch(job.id, connection=redis, serializer=JSONSerializer)


def assert_registries(
    queue: Queue, *, finished: Sequence[AnyJob], failed: Sequence[AnyJob], canceled: Sequence[AnyJob]
) -> None:
    for registry, jobs in (
        (queue.finished_job_registry, finished),
        (queue.failed_job_registry, failed),
        (queue.canceled_job_registry, canceled),
    ):
        assert sorted(registry.get_job_ids()) == sorted(job.id for job in jobs)
    assert queue.started_job_registry.get_job_ids(cleanup=False) == queue.get_job_ids() == []
    for other in (queue.deferred_job_registry, queue.scheduled_job_registry):
        assert other.get_job_ids() == []


def test_every_job_is_in_the_registry_of_its_state_alone(
    redis: Redis, queue: Queue, client: Client, drain: Drain
) -> None:
    finished = client.submit_all(["fine"] * 3)
    failed = [client.submit("raise"), client.submit("sleep 60", timeout_s=1)]
    canceled = [client.submit("unwanted")]
    by_hand = queue.enqueue("os.getpid")
    client.cancel(canceled[0])
    drain()
    assert read(redis, finished[0]).get_status() == JobStatus.FINISHED
    assert_registries(queue, finished=finished, failed=[*failed, by_hand], canceled=canceled)
    for pattern in LEASE_FIELDS:
        assert list(redis.scan_iter(pattern)) == []


def test_rq_reads_a_finished_job(redis: Redis, client: Client, drain: Drain) -> None:
    submitted = client.submit("fine")
    drain()
    job, ours = read(redis, submitted), client.fetch(submitted)
    assert job.is_finished
    assert job.func_name == FUNCTION
    assert job.return_value()["result"] == ours.result
    assert (job.started_at, job.ended_at) == (ours.started_at, ours.finished_at)
    [result] = Result.all(job, serializer=JSONSerializer)
    assert result.type == Result.Type.SUCCESSFUL
    assert job.worker_name == result.worker_name
    assert job.get_executions() == []


def test_rq_reads_a_failed_job(redis: Redis, client: Client, drain: Drain) -> None:
    submitted = client.submit("raise")
    drain()
    job = read(redis, submitted)
    assert job.is_failed
    assert "internal_error" in (job.latest_result().exc_string or "")
    assert job.latest_result().type == Result.Type.FAILED


def test_a_running_job_is_in_the_started_registry_of_a_live_worker(
    redis: Redis, queue: Queue, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = client.submit(f"hold {gate}")
    start_worker()
    until(lambda: client.status(job) == "in_progress")
    assert queue.started_job_registry.get_job_ids() == [job.id]
    [worker] = Worker.all(connection=redis)
    [execution] = read(redis, job).get_executions()
    assert execution.worker_name == worker.name == read(redis, job).worker_name
    gate.touch()
    client.until_ended([job])
    assert_registries(queue, finished=[job], failed=[], canceled=[])


def test_rq_info_counts_jobs_and_shows_what_the_worker_does(
    valkey: EmbeddedValkey, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    def info() -> list[str]:
        command = [sys.executable, "-m", "rq.cli", "info", "--raw", "--serializer", "json", "--url", valkey.url]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    gate = tmp_path / "gate"
    client.submit_all(["fine", "raise", "fine", "raise", "fine"])
    held = client.submit(f"hold {gate}")
    start_worker(heartbeat_s=0.2, batch_rows=1)
    until(lambda: client.status(held) == "in_progress")
    client.submit_all(["fine"] * 4)
    queue, worker = until(lambda: (found := info()) and " busy " in found[1] and found)
    assert queue == "queue fieldcast 4, 1 executing, 3 finished, 2 failed"
    assert worker.startswith("worker mac.")
    assert worker.endswith(" busy fieldcast. jobs: 3 finished, 2 failed")
    gate.touch()
    until(lambda: info()[1].endswith(" idle fieldcast. jobs: 8 finished, 2 failed"))
    assert info()[0] == "queue fieldcast 0, 0 executing, 8 finished, 2 failed"


def test_a_killed_worker_leaves_nothing_behind_once_its_job_was_run_again(
    redis: Redis, queue: Queue, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job, unwanted = client.submit(f"hold {gate}"), client.submit(f"hold {gate}")
    killed = start_worker()
    until(lambda: client.status(unwanted) == "in_progress")
    client.cancel(unwanted)
    killed.process.kill()
    killed.process.wait()
    gate.touch()
    start_worker()
    client.until_ended([job])
    assert_registries(queue, finished=[job], failed=[], canceled=[unwanted])
    assert list(redis.scan_iter("rq:execution*")) == []


def test_a_failed_job_that_is_requeued_with_rq_s_tools_runs_again(
    redis: Redis, queue: Queue, client: Client, drain: Drain
) -> None:
    job = client.submit("sleep 1.5", timeout_s=1)
    drain()
    redis.hset(keys.job(job.id), "timeout", 60)
    queue.failed_job_registry.requeue(job.id)
    waiting = client.fetch(job)
    assert (waiting.status, waiting.result, waiting.error) == ("queued", None, None)
    drain()
    ended = client.fetch(job)
    assert (ended.status, ended.attempts, ended.error) == ("completed", 2, None)
    assert_registries(queue, finished=[job], failed=[], canceled=[])


def test_dead_workers_are_forgotten(redis: Redis, start_worker: StartWorker, drain: Drain) -> None:
    killed = start_worker()
    until(lambda: redis.exists(keys.worker("mac")))
    killed.process.kill()
    killed.process.wait()
    [name] = redis.smembers("rq:workers")
    redis.delete(name)  # as when its time to live is over
    drain()
    assert redis.smembers("rq:workers") == set()
    assert ids_in(redis, keys.STARTED) == queued_ids(redis) == []
