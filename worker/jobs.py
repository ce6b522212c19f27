"""Jobs as clients see them: submit, fetch, cancel, delete, requeue, over one asyncio connection. Imports RQ; never mlx.

The record is RQ's own job hash, so that RQ's tools show it. What only Fieldcast knows is in its `meta`; the document is
stored beside it by hash and passed by id. A job id is the first 16 hex digits of the document's id (8 of them are the
tenant's tag), a dash, a digit for the lane, and 31 random ones; so the queue's list is its own index of whose jobs
wait, in which lane, and which of them share a document.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from redis.asyncio import Redis
from rq.job import Job as RQJob
from rq.job import JobStatus
from rq.serializers import JSONSerializer

from engine.request import Options
from engine.schema import StructuredSchema
from worker import documents, job_record, keys, tenants
from worker.job_record import Job

FUNCTION = "worker.runner.answer"  # the only function that this queue runs
Lane = Literal["interactive", "bulk"]
LANE_DIGITS: dict[Lane, str] = {"bulk": "0", "interactive": "1"}
JOB_ID = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}")
DESCRIPTION = "fieldcast"  # RQ's default would be the call with its arguments
CHARACTERS_PER_TOKEN = 3  # for the estimate that a claim budgets with: on the short side for English
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"  # RQ's
DEFAULT_TTL_S = 86_400  # of jobs that were not submitted through `submit`


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
    tenant: str = tenants.DEFAULT


async def submit(redis: Redis, spec: JobSpec) -> Job:
    """Store the job and its document and queue it, in one transaction and one round trip."""
    context = documents.context_id(spec.context, spec.tenant)
    job_id = f"{context[:16]}-{LANE_DIGITS[spec.lane]}{secrets.token_hex(16)[1:]}"
    schema = spec.schema.to_dict()
    payload = {"context": context, "schema": schema, "options": asdict(spec.options)}
    schema_tokens = len(json.dumps(schema, ensure_ascii=False)) // CHARACTERS_PER_TOKEN
    cost = f"{len(spec.context) // CHARACTERS_PER_TOKEN},{schema_tokens}"
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
            "min_confidence": spec.min_confidence,
            "metadata": dict(spec.metadata),
            "webhook": asdict(spec.webhook) if spec.webhook else None,
            "context": context,
            "cost": cost,  # a job that is queued again needs it again
        },
    )
    record.enqueued_at = record.created_at
    record._status = JobStatus.QUEUED
    async with redis.pipeline(transaction=True) as pipeline:
        documents.store(pipeline, context, spec.context, job_id)
        record.save(pipeline=pipeline)  # type: ignore[arg-type]
        pipeline.hset(keys.COSTS, job_id, cost)
        pipeline.sadd(keys.RQ_QUEUES, keys.QUEUE_LIST)
        if spec.lane == "interactive":
            pipeline.lpush(keys.QUEUE_LIST, job_id)  # the claim takes the oldest of those that stand in front
        else:
            pipeline.rpush(keys.QUEUE_LIST, job_id)
            pipeline.sadd(keys.BULK_TENANTS, tenants.tag(spec.tenant))
        pipeline.execute_command("LPOS", keys.QUEUE_LIST, job_id)
        replies = await pipeline.execute()
    stored = {k.encode(): v for k, v in record.to_dict().items()} | {b"status": JobStatus.QUEUED.value}
    return job_record.read(job_id, stored, [], replies[-1])


async def fetch(redis: Redis, job_id: str) -> Job | None:
    """The job, or None when there is none (any more). One round trip."""
    if not JOB_ID.fullmatch(job_id):
        return None
    async with redis.pipeline(transaction=True) as pipeline:
        job_record.look(pipeline, job_id)
        found = await pipeline.execute()
    return job_record.found(job_id, *found)


# The scripts below begin with this.
LEAVE = (
    documents.RELEASE
    + f"""
local function meta_of(raw)
  local readable, meta = pcall(cjson.decode, raw or '')
  return readable and type(meta) == 'table' and meta or {{}}
end
local function leave(id, meta, keep_s)  -- the job has no place in the queue any more, and no use for its document
  redis.call('LREM', '{keys.QUEUE_LIST}', 1, id)
  redis.call('HDEL', '{keys.COSTS}', id)
  redis.call('HDEL', '{keys.CRASHES}', id)
  if type(meta.context) == 'string' then release(meta.context, id, keep_s) end
end
"""
)

# KEYS: job hash, canceled registry. ARGV: job id, time (RFC 3339), channel, message, TTL, Unix time. A claimed job that
# has not started stays in its claimed list; its status alone keeps the worker from starting it. A running job goes on,
# but its result is dropped: only the end of a job that is `started` is stored.
CANCEL = (
    keys.EVEN_WHEN_FULL
    + LEAVE
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'started' then return 0 end
local ttl = tonumber(redis.call('HGET', KEYS[1], 'result_ttl')) or tonumber(ARGV[5])
leave(ARGV[1], meta_of(redis.call('HGET', KEYS[1], 'meta')), ttl)
redis.call('HSET', KEYS[1], 'status', 'canceled', 'ended_at', ARGV[2])
redis.call('EXPIRE', KEYS[1], ttl)
redis.call('ZADD', KEYS[2], tonumber(ARGV[6]) + ttl, ARGV[1])
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
            2,
            keys.job(job_id),
            keys.CANCELED,
            job_id,
            now.strftime(TIME_FORMAT),
            keys.DONE_CHANNEL,
            json.dumps({"ids": [job_id]}),
            DEFAULT_TTL_S,
            now.timestamp(),
        )
        job_record.look(pipeline, job_id)
        ended, *found = await pipeline.execute()
    job = job_record.found(job_id, *found)
    return None if job is None else (job, ended == 1)


# KEYS: job hash, its results, registries of ended jobs. ARGV: job id, channel, message.
# A job that runs goes on, but nothing of it is stored any more: only the end of a job that is `started` is.
DELETE = (
    keys.EVEN_WHEN_FULL
    + LEAVE
    + """
local raw = redis.call('HGET', KEYS[1], 'meta')
if redis.call('DEL', KEYS[1]) == 0 then return end
redis.call('DEL', KEYS[2])
for i = 3, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
leave(ARGV[1], meta_of(raw), 0)
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
        job_record.look(pipeline, job_id)
        pipeline.eval(
            DELETE,
            5,
            keys.job(job_id),
            keys.results(job_id),
            keys.CANCELED,
            keys.FAILED,
            keys.FINISHED,
            job_id,
            keys.DONE_CHANNEL,
            json.dumps({"ids": [job_id]}),
        )
        *found, _ = await pipeline.execute()
    return job_record.found(job_id, *found)


class RequeueRefused(Exception):
    """The job cannot be queued again. `type` is a stable word; the message says what the client can do."""

    def __init__(self, type: str, detail: str) -> None:
        self.type = type
        super().__init__(detail)


REFUSALS = {
    "job_not_failed": "only a job that has failed or was cancelled can be queued again",
    "job_still_running": "the worker that ran the job has not let go of it yet; try again in a moment",
    "document_expired": "the job's document is no longer stored; submit the job again with it",
}

# KEYS: job hash, its results, registries of ended jobs. ARGV: job id, time (RFC 3339). Returns why it refuses or false.
# A job that was cancelled while it was claimed may still be in a claimed list: it is taken out, so that the worker does
# not start it and it is in one place. One that was cancelled while it ran has its execution in the registry until the
# worker (or who recovers it) ends that: till then a second run would be mistaken for the first. Without the flag of
# the other scripts: a full server takes no new jobs.
REQUEUE = (
    "#!lua\n"
    + LEAVE
    + documents.KEEP
    + f"""
local id, status = ARGV[1], redis.call('HGET', KEYS[1], 'status')
if not status then return false end
if status ~= 'failed' and status ~= 'canceled' then return 'job_not_failed' end
for _, entry in ipairs(redis.call('ZRANGE', '{keys.STARTED}', 0, -1)) do
  if string.sub(entry, 1, #id + 1) == id .. ':' then return 'job_still_running' end
end
local meta = meta_of(redis.call('HGET', KEYS[1], 'meta'))
if not keep(tostring(meta.context), id) then return 'document_expired' end
for i = 3, #KEYS do redis.call('ZREM', KEYS[i], id) end
for _, slot in ipairs(redis.call('SMEMBERS', '{keys.SLOTS}')) do
  redis.call('LREM', '{keys.claimed("")}' .. slot, 0, id)
end
redis.call('DEL', KEYS[2])
redis.call('HDEL', '{keys.CRASHES}', id)
redis.call('HSET', KEYS[1], 'status', 'queued', 'enqueued_at', ARGV[2], 'started_at', '')
redis.call('HDEL', KEYS[1], 'ended_at')
redis.call('HINCRBY', KEYS[1], '{keys.REQUEUES}', 1)
redis.call('PERSIST', KEYS[1])
if type(meta.cost) == 'string' then redis.call('HSET', '{keys.COSTS}', id, meta.cost) end
redis.call('SADD', '{keys.RQ_QUEUES}', '{keys.QUEUE_LIST}')
if string.sub(id, 18, 18) == '{LANE_DIGITS["interactive"]}' then redis.call('LPUSH', '{keys.QUEUE_LIST}', id)
else
  redis.call('RPUSH', '{keys.QUEUE_LIST}', id)
  redis.call('SADD', '{keys.BULK_TENANTS}', string.sub(id, 1, {tenants.TAG_DIGITS}))
end
return false
"""
)


async def requeue(redis: Redis, job_id: str) -> Job | None:
    """Queue a job that failed or was cancelled again, behind those of its lane. One round trip.

    Its crashes and its old result are forgotten; its attempts go on counting. Returns the job; None when there is no
    such job. Raises `RequeueRefused`.
    """
    if not JOB_ID.fullmatch(job_id):
        return None
    now = datetime.now(UTC).strftime(TIME_FORMAT)
    ended_keys = [keys.job(job_id), keys.results(job_id), keys.CANCELED, keys.FAILED]
    async with redis.pipeline(transaction=True) as pipeline:
        pipeline.eval(REQUEUE, len(ended_keys), *ended_keys, job_id, now)
        job_record.look(pipeline, job_id)
        refused, *found = await pipeline.execute()
    if refused is not None:
        raise RequeueRefused(refused.decode(), REFUSALS[refused.decode()])
    return job_record.found(job_id, *found)
