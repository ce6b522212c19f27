"""Every acknowledged job's life as Redis tells it: each ended exactly once, and the queue keeps nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from queue_client import Client, context_of, until
from redis import Redis
from rq.job import JobStatus
from rq.results import Result

from worker import keys
from worker.job_record import Job

REGISTRIES = {  # RQ's status of a job that has ended, and where a job of that status is found
    JobStatus.FINISHED: keys.FINISHED,
    JobStatus.FAILED: keys.FAILED,
    JobStatus.CANCELED: keys.CANCELED,
}
RESULTS = {
    JobStatus.FINISHED: [Result.Type.SUCCESSFUL],
    JobStatus.FAILED: [Result.Type.FAILED],
    JobStatus.CANCELED: [],
}


def ended_once(redis: Redis, client: Client, jobs: Sequence[Job], *, most_attempts: int = 2) -> list[Job]:
    """The jobs as they are once all have ended. Asserts that each did exactly once, and that nothing else is left.

    `most_attempts`: how often a job can have been started, after the crashes and lost connections that there were.
    """
    ended = client.until_ended(jobs)
    for job in ended:
        assert_one_end(redis, job, most_attempts)
    until(lambda: not left_in_queue(redis))  # what a worker still ran when another had ended it is cleared later
    return ended


def assert_all_completed(ended: Sequence[Job]) -> None:
    assert {job.status for job in ended} == {"completed"}


def left_in_queue(redis: Redis) -> list[str]:
    """The keys, of those that hold only jobs that have not ended, that are there."""
    claimed = [raw.decode() for raw in redis.scan_iter(keys.claimed("*"))]
    return [
        key for key in (keys.QUEUE_LIST, *claimed, keys.STARTED, keys.CRASHES, keys.COSTS) if redis.exists(key) == 1
    ]


def assert_one_end(redis: Redis, job: Job, most_attempts: int) -> None:
    """That this job, which has ended, did so once."""
    stored = redis.hgetall(keys.job(job.id))
    status = JobStatus(stored[b"status"].decode())
    assert [name for name, key in REGISTRIES.items() if redis.zscore(key, job.id) is not None] == [status], job
    results = [Result.Type(int(fields[b"type"])) for _, fields in redis.xrange(keys.results(job.id))]
    assert results == RESULTS[status], job
    assert 0 < redis.ttl(keys.job(job.id)) <= int(stored[b"result_ttl"]), job
    assert not redis.sismember(keys.document_users(context_of(redis, job.id)), job.id), job
    assert job.finished_at is not None, job
    if status == JobStatus.CANCELED:
        return
    assert job.started_at is not None, job
    assert job.created_at <= job.started_at <= job.finished_at, job
    assert 1 <= job.attempts <= most_attempts, job
    assert (job.result is None, job.error is None) == (status == JobStatus.FAILED, status != JobStatus.FAILED), job
    if job.error is not None and job.error["type"] == "quarantined":
        assert job.attempts >= 2, job
