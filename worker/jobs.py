"""Jobs as clients see them: submit, fetch, cancel, delete, over one asyncio connection. Imports RQ; never mlx.

The record is RQ's own job hash, so that RQ's tools show it. What only Fieldcast knows is in its `meta`; the document is
stored beside it by hash and passed by id. A job id is 16 hex digits of the context's hash, a dash, and 32 random ones,
so that the queue's list is its own index of which jobs share a context.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from rq.job import Job as RQJob
from rq.job import JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer

from engine.request import Options
from engine.schema import StructuredSchema
from worker import documents, keys
from worker.problems import JobProblem

FUNCTION = "worker.runner.answer"  # the only function that this queue runs
Lane = Literal["interactive", "bulk"]
JOB_ID = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}")
DESCRIPTION = "fieldcast"  # RQ's default would be the call with its arguments
CHARACTERS_PER_TOKEN = 3  # for the estimate that a claim budgets with: on the short side for English
DEFAULT_TTL_S = 86_400  # of jobs that were not submitted through `submit`

STATUSES = {
    JobStatus.FINISHED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.STARTED: "in_progress",
    JobStatus.CANCELED: "cancelled",
    JobStatus.STOPPED: "cancelled",
}


@dataclass(frozen=True)
class Webhook:
    """Where a job's end is posted, for which events, and the whsec_ key that signs it (None: the service's own)."""

    url: str
    events: tuple[str, ...]
    secret: str | None


@dataclass(frozen=True)
class JobSpec:
    """A checked submission. `timeout_s` counts from the start of the run; when a batch is
    interrupted, from the start of the job's own run alone. `result_ttl_s` counts from the end."""

    context: str
    schema: StructuredSchema
    preset: str | None
    options: Options
    min_confidence: float | None
    lane: Lane
    timeout_s: int
    result_ttl_s: int
    metadata: Mapping[str, str]
    webhook: Webhook | None


@dataclass(frozen=True)
class Job:
    """A job as stored. Times are UTC. Once ended, one of `result` and `error` is set, unless it was cancelled."""

    id: str
    status: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    queue_position: int | None
    attempts: int
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    timings: dict[str, Any] | None
    batch: dict[str, Any] | None
    review: tuple[str, ...]
    metadata: Mapping[str, str]
    preset: str | None  # the one it was submitted with; not shown to clients

    def to_dict(self) -> dict[str, Any]:
        """The public job shape (contracts, section 3)."""
        link = f"/v1/jobs/{self.id}"
        return {
            "id": self.id,
            "object": "job",
            "status": self.status,
            "created_at": _rfc3339(self.created_at),
            "started_at": _rfc3339(self.started_at),
            "finished_at": _rfc3339(self.finished_at),
            "expires_at": _rfc3339(self.expires_at),
            "queue_position": self.queue_position,
            "attempts": self.attempts,
            "result": self.result,
            "error": self.error,
            "timings": self.timings,
            "batch": self.batch,
            "review": list(self.review),
            "metadata": dict(self.metadata),
            "links": {"self": link, "events": f"{link}/events", "cancel": f"{link}/cancel"},
        }


async def submit(redis: Redis, spec: JobSpec) -> Job:
    """Store the job and its document and queue it, in one transaction and one round trip."""
    context = documents.context_id(spec.context)
    job_id = f"{context[:16]}-{secrets.token_hex(16)}"
    schema = spec.schema.to_dict()
    payload = {"context": context, "schema": schema, "options": asdict(spec.options)}
    record = RQJob.create(
        FUNCTION,
        args=(payload,),
        id=job_id,
        connection=redis,  # type: ignore[arg-type]  # only carried along: every command goes into the pipeline
        serializer=JSONSerializer,
        description=DESCRIPTION,
        timeout=spec.timeout_s,
        result_ttl=spec.result_ttl_s,
        failure_ttl=spec.result_ttl_s,
        origin=keys.QUEUE,
        meta={
            "preset": spec.preset,
            "lane": spec.lane,
            "min_confidence": spec.min_confidence,
            "metadata": dict(spec.metadata),
            "webhook": asdict(spec.webhook) if spec.webhook else None,
            "context": context,
        },
    )
    record.enqueued_at = record.created_at
    record._status = JobStatus.QUEUED
    schema_tokens = len(json.dumps(schema, ensure_ascii=False)) // CHARACTERS_PER_TOKEN
    cost = f"{len(spec.context) // CHARACTERS_PER_TOKEN},{schema_tokens},{spec.lane}"
    async with redis.pipeline(transaction=True) as pipeline:
        documents.store(pipeline, spec.context, job_id)
        record.save(pipeline=pipeline)  # type: ignore[arg-type]
        pipeline.hset(keys.COSTS, job_id, cost)
        pipeline.sadd(keys.RQ_QUEUES, keys.QUEUE_LIST)
        if spec.lane == "interactive":
            pipeline.lpush(keys.QUEUE_LIST, job_id)  # the claim takes the oldest of those that stand in front
        else:
            pipeline.rpush(keys.QUEUE_LIST, job_id)
        pipeline.execute_command("LPOS", keys.QUEUE_LIST, job_id)
        replies = await pipeline.execute()
    stored = {k.encode(): v for k, v in record.to_dict().items()} | {b"status": JobStatus.QUEUED.value}
    return _read(job_id, stored, [], replies[-1])


async def fetch(redis: Redis, job_id: str) -> Job | None:
    """The job, or None when there is none (any more). One round trip."""
    if not JOB_ID.fullmatch(job_id):
        return None
    async with redis.pipeline(transaction=True) as pipeline:
        _look(pipeline, job_id)
        found = await pipeline.execute()
    return _found(job_id, *found)


# KEYS: job hash, queue list, canceled registry, costs, crashes. ARGV: job id, time (RFC 3339), channel, message, TTL,
# Unix time. A claimed job that has not started is in no list that we know; its status alone keeps the worker from
# starting it. A running job goes on, but its result is dropped: only the end of a job that is `started` is stored.
CANCEL = (
    keys.EVEN_WHEN_FULL
    + documents.RELEASE
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'started' then return 0 end
local ttl = tonumber(redis.call('HGET', KEYS[1], 'result_ttl')) or tonumber(ARGV[5])
redis.call('LREM', KEYS[2], 1, ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('HDEL', KEYS[5], ARGV[1])
redis.call('HSET', KEYS[1], 'status', 'canceled', 'ended_at', ARGV[2])
redis.call('EXPIRE', KEYS[1], ttl)
redis.call('ZADD', KEYS[3], tonumber(ARGV[6]) + ttl, ARGV[1])
local readable, meta = pcall(cjson.decode, redis.call('HGET', KEYS[1], 'meta') or '')
if readable and type(meta) == 'table' and type(meta.context) == 'string' then release(meta.context, ARGV[1], ttl) end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
"""
)


async def cancel(redis: Redis, job_id: str) -> tuple[Job, bool] | None:
    """Cancel a job that is queued or running; one that has ended stays as it is. One round trip.

    Returns the job, and whether this call ended it; None when there is no such job.
    """
    if not JOB_ID.fullmatch(job_id):
        return None
    now = datetime.now(UTC)
    async with redis.pipeline(transaction=True) as pipeline:
        pipeline.eval(
            CANCEL,
            5,
            keys.job(job_id),
            keys.QUEUE_LIST,
            keys.CANCELED,
            keys.COSTS,
            keys.CRASHES,
            job_id,
            now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            keys.DONE_CHANNEL,
            json.dumps({"ids": [job_id]}),
            DEFAULT_TTL_S,
            now.timestamp(),
        )
        _look(pipeline, job_id)
        ended, *found = await pipeline.execute()
    job = _found(job_id, *found)
    return None if job is None else (job, ended == 1)


# KEYS: job hash, its results, queue list, costs, crashes, registries of ended jobs. ARGV: job id, channel, message.
# A job that runs goes on, but nothing of it is stored any more: only the end of a job that is `started` is.
DELETE = (
    keys.EVEN_WHEN_FULL
    + documents.RELEASE
    + """
local raw = redis.call('HGET', KEYS[1], 'meta')
if redis.call('DEL', KEYS[1]) == 0 then return end
redis.call('DEL', KEYS[2])
redis.call('LREM', KEYS[3], 1, ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('HDEL', KEYS[5], ARGV[1])
for i = 6, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
local readable, meta = pcall(cjson.decode, raw or '')
if readable and type(meta) == 'table' and type(meta.context) == 'string' then release(meta.context, ARGV[1], 0) end
redis.call('PUBLISH', ARGV[2], ARGV[3])
"""
)


async def delete(redis: Redis, job_id: str) -> Job | None:
    """Remove a job, its result and, unless another job that has not ended uses it, its document. One round trip.

    Returns the job as it was; None when there is no such job.
    """
    if not JOB_ID.fullmatch(job_id):
        return None
    async with redis.pipeline(transaction=True) as pipeline:
        _look(pipeline, job_id)
        pipeline.eval(
            DELETE,
            8,
            keys.job(job_id),
            keys.results(job_id),
            keys.QUEUE_LIST,
            keys.COSTS,
            keys.CRASHES,
            keys.CANCELED,
            keys.FAILED,
            keys.FINISHED,
            job_id,
            keys.DONE_CHANNEL,
            json.dumps({"ids": [job_id]}),
        )
        *found, _ = await pipeline.execute()
    return _found(job_id, *found)


def _look(pipeline: Pipeline, job_id: str) -> None:
    """Buffers what `_found` reads."""
    pipeline.hgetall(keys.job(job_id))
    pipeline.xrevrange(keys.results(job_id), count=1)
    pipeline.execute_command("LPOS", keys.QUEUE_LIST, job_id)


def _found(job_id: str, stored: Mapping[bytes, Any], results: list[Any], position: int | None) -> Job | None:
    return _read(job_id, stored, results, position) if b"status" in stored else None


def _read(job_id: str, stored: Mapping[bytes, Any], results: list[Any], position: int | None) -> Job:
    def text(name: str) -> str:
        value = stored.get(name.encode(), b"")
        return value.decode() if isinstance(value, bytes) else str(value)

    meta = _json(stored.get(b"meta"))
    status = STATUSES.get(JobStatus(text("status")), "queued")
    outcome = _outcome(results) if status in ("completed", "failed") else {}
    error = outcome.get("error")
    if status == "failed" and error is None:  # RQ itself failed it
        error = JobProblem("abandoned", "the job was given up by the queue", 500).to_dict()
    ended = _time(text("ended_at"))
    created = _time(text("created_at")) or datetime.now(UTC)
    return Job(
        id=job_id,
        status=status,
        created_at=created,
        started_at=_time(text("started_at")),
        finished_at=ended,
        expires_at=ended + timedelta(seconds=int(text("result_ttl"))) if ended and text("result_ttl") else None,
        queue_position=position + 1 if status == "queued" and position is not None else None,
        attempts=int(text("fieldcast_attempts") or 0),
        result=outcome.get("result"),
        error=error,
        timings=outcome.get("timings"),
        batch=outcome.get("batch"),
        review=tuple(outcome.get("review", ())),
        metadata=meta.get("metadata", {}),
        preset=meta.get("preset"),
    )


def _outcome(results: list[Any]) -> dict[str, Any]:
    """What the worker stored as the job's last result: its return value, or the failure in place of a traceback."""
    if not results:
        return {}
    entry = results[0][1]
    kind = Result.Type(int(entry[b"type"]))
    if kind == Result.Type.SUCCESSFUL:
        return _json(b64decode(entry.get(b"return_value", b"")))
    return _json(zlib.decompress(b64decode(entry[b"exc_string"])) if b"exc_string" in entry else None)


def _json(raw: bytes | str | None) -> dict[str, Any]:
    try:
        found = json.loads(raw or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _rfc3339(time: datetime | None) -> str | None:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if time else None
