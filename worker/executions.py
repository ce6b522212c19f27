"""Starting and ending jobs in Redis: one transaction per batch each, with RQ's own per-job methods inside.

The order of the writes is what makes a crash harmless. A claimed id is in the slot's claimed list until the transaction
that marks it started; a started job is in RQ's registry until the transaction that stores its end. So at any moment a
job that has not ended is found in exactly one of the queue, a claimed list, or the registry.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis, WatchError
from redis.client import Pipeline
from rq.executions import Execution
from rq.job import Job as RQJob
from rq.job import JobStatus
from rq.utils import as_text, now

from worker import deliveries, documents, keys
from worker.jobs import DEFAULT_TTL_S, FUNCTION
from worker.problems import DOCUMENT_MISSING, FUNCTION_REFUSED, PAYLOAD_INVALID, QUARANTINED, JobProblem
from worker.runner import Answer, Question

CRASHES_ALLOWED = 1  # a job that was running in one more crash than this is quarantined

# KEYS: job hashes. Returns each one's status and worker name.
STATES = """
local found = {}
for i = 1, #KEYS do
  local state = redis.call('HMGET', KEYS[i], 'status', 'worker_name')
  found[#found + 1] = state[1] or ''
  found[#found + 1] = state[2] or ''
end
return found
"""

# KEYS: job, queue, crashes, started registry. ARGV: job id, registry entry, the worker that ran it, 1 to count a crash.
# 0: not that worker's any more; 1: queued again; 2: has crashed too often, still started, to be failed.
REQUEUE = """
local state = redis.call('HMGET', KEYS[1], 'status', 'worker_name')
if state[1] ~= 'started' or state[2] ~= ARGV[3] then
  redis.call('ZREM', KEYS[4], ARGV[2])
  return 0
end
if ARGV[4] == '1' and redis.call('HINCRBY', KEYS[3], ARGV[1], 1) > tonumber(ARGV[5]) then return 2 end
redis.call('HSET', KEYS[1], 'status', 'queued', 'started_at', '')
redis.call('LPUSH', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[2])
return 1
"""


@dataclass
class Running:
    """A started job. `deadline` is on the monotonic clock; `worker` is the name it was started under."""

    job: RQJob
    execution: Execution
    worker: str
    meta: dict[str, Any] = field(default_factory=dict)
    question: Question | None = None
    problem: JobProblem | None = None  # why it cannot be run at all
    deadline: float = float("inf")

    @property
    def id(self) -> str:
        return str(self.job.id)

    @property
    def result_ttl_s(self) -> int:
        return int(self.job.result_ttl or DEFAULT_TTL_S)


@dataclass(frozen=True)
class Ended:
    """A job's end: what is stored of it. `value` is JSON; for a failure it takes a traceback's place."""

    running: Running
    status: str  # completed or failed
    value: dict[str, Any]


class Executions:
    """Transactions of one worker, named `worker_name`, in `slot`."""

    def __init__(
        self, redis: Redis, job_class: type[RQJob], serializer: Any, slot: str, worker_name: str, lease_s: int
    ):
        self._redis = redis
        self._job_class, self._serializer = job_class, serializer
        self._slot, self._worker_name, self._lease_s = slot, worker_name, lease_s
        self._states = redis.register_script(STATES)
        self._requeue = redis.register_script(REQUEUE)

    def start(self, ids: Sequence[str]) -> list[Running]:
        """Mark claimed jobs started, all in one transaction, and read what they ask.

        Jobs that were cancelled or deleted since they were queued are left out, and stay as they were.
        """
        jobs = [self._job(job_id) for job_id in ids]
        executions = []
        with self._redis.pipeline() as pipeline:
            for job in jobs:
                pipeline.hgetall(job.key)
            for job in jobs:
                executions.append(Execution.create(job, self._lease_s, pipeline, self._worker_name))
                job.prepare_for_execution(self._worker_name, pipeline=pipeline)
                pipeline.hincrby(job.key, "fieldcast_attempts", 1)
                pipeline.persist(job.key)
                pipeline.hdel(keys.COSTS, job.id)
                pipeline.lrem(keys.claimed(self._slot), 1, job.id)
            stored = pipeline.execute()[: len(jobs)]
        running = [Running(job, execution, self._worker_name) for job, execution in zip(jobs, executions, strict=True)]
        kept = []
        with self._redis.pipeline() as pipeline:
            for entry, raw in zip(running, stored, strict=True):
                status = as_text(raw[b"status"]) if b"status" in raw else None
                if status == JobStatus.QUEUED:
                    kept.append(entry)
                    self._read(entry, raw)
                elif status is None:
                    pipeline.delete(entry.job.key)
                    entry.execution.delete(entry.job, pipeline)
                else:
                    pipeline.hset(entry.job.key, mapping={"status": status, "started_at": "", "worker_name": ""})
                    pipeline.expire(entry.job.key, int(raw.get(b"result_ttl") or DEFAULT_TTL_S))
                    entry.execution.delete(entry.job, pipeline)
            contexts = [str(entry.meta.get("context")) for entry in kept]
            for context in contexts:
                pipeline.get(keys.document(context))
            texts = pipeline.execute()[-len(kept) :] if kept else pipeline.execute()[:0]
        for entry, context, text in zip(kept, contexts, texts, strict=True):
            if entry.problem is None:
                self._attach(entry, context, as_text(text) if text else None)
        return kept

    def finish(self, ended: Sequence[Ended]) -> list[Ended]:
        """Store the ends of jobs, their webhooks and the news of it, in one transaction. Returns those that were still
        ours to end: a job that was cancelled meanwhile, or recovered by another worker, keeps the state it has."""
        job_keys = [entry.running.job.key for entry in ended]
        while True:
            with self._redis.pipeline() as pipeline:
                try:
                    pipeline.watch(*job_keys)  # type: ignore[no-untyped-call]
                    found = [as_text(state) for state in self._states(keys=job_keys, client=pipeline)]
                    ours = [
                        entry
                        for entry, status, worker in zip(ended, found[::2], found[1::2], strict=True)
                        if status == JobStatus.STARTED and worker == entry.running.worker
                    ]
                    pipeline.multi()
                    for entry in ours:
                        self._end(entry, pipeline)
                    for entry in ended:
                        entry.running.execution.delete(entry.running.job, pipeline)
                    if ours:
                        pipeline.publish(keys.DONE_CHANNEL, json.dumps({"ids": [e.running.id for e in ours]}))
                    pipeline.execute()
                except WatchError:
                    continue
                return ours

    def give_back(self, running: Iterable[Running]) -> None:
        """Put started jobs back to the queue's front without counting it against them."""
        for entry in reversed(list(running)):
            self._requeue_one(entry.id, entry.execution.composite_key, entry.worker, count=False)

    def recover(self, names: Iterable[str] = (), *, count: bool = True) -> tuple[int, int]:
        """Queue again what dead workers were running: jobs whose lease has run out, and those of workers whose names
        begin with one of `names`, which are known to be gone. Returns how many were queued again and quarantined."""
        prefixes = tuple(names)
        requeued = quarantined = 0
        entries: Any = self._redis.zrange(keys.STARTED, 0, -1, withscores=True)
        for raw, lease_end in entries:
            composite = as_text(raw)
            job_id = composite.partition(":")[0]
            worker = as_text(self._redis.hget(keys.job(job_id), "worker_name") or b"")
            if lease_end > time.time() and not (prefixes and worker.startswith(prefixes)):
                continue
            outcome = self._requeue_one(job_id, composite, worker, count=count)
            requeued += outcome == 1
            if outcome == 2:
                quarantined += self._quarantine(job_id, composite, worker)
        return requeued, quarantined

    def renew(self, running: Iterable[Running], pipeline: Pipeline) -> None:
        """Buffer the renewal of the leases of `running`."""
        for entry in running:
            entry.execution.heartbeat(entry.job.started_job_registry, self._lease_s, pipeline)

    def _requeue_one(self, job_id: str, composite: str, worker: str, *, count: bool) -> int:
        return int(
            self._requeue(
                keys=[keys.job(job_id), keys.QUEUE_LIST, keys.CRASHES, keys.STARTED],
                args=[job_id, composite, worker, int(count), CRASHES_ALLOWED],
            )
        )

    def _quarantine(self, job_id: str, composite: str, worker: str) -> int:
        entry = Running(self._job(job_id), Execution.from_composite_key(composite, self._redis), worker)
        self._read(entry, self._redis.hgetall(keys.job(job_id)))
        return len(self.finish([Ended(entry, "failed", {"error": QUARANTINED.to_dict()})]))

    def _job(self, job_id: str) -> RQJob:
        job = self._job_class(job_id, connection=self._redis, serializer=self._serializer)
        job.origin = keys.QUEUE
        return job

    def _read(self, entry: Running, raw: Mapping[Any, Any]) -> None:
        """What the stored hash says: RQ's fields into the job, ours into `meta`."""
        job = entry.job
        started_at = job.started_at
        job.restore(raw)
        job.started_at = started_at or job.started_at
        job.worker_name, job._status = entry.worker, JobStatus.STARTED
        entry.meta = job.meta if isinstance(job.meta, dict) else {}
        if job.func_name != FUNCTION:
            entry.problem = FUNCTION_REFUSED
        timeout_s = float(job.timeout or 0)
        entry.deadline = time.monotonic() + timeout_s if timeout_s > 0 else float("inf")

    def _attach(self, entry: Running, context: str, text: str | None) -> None:
        """The question of a job, or why it has none."""
        try:
            [payload] = entry.job.args
            named, schema, options = payload["context"], payload["schema"], payload["options"]
            readable = isinstance(schema, dict) and isinstance(options, dict) and named == context
        except Exception:  # whatever a hand-made job's arguments raise when they are read
            readable = False
        if not readable:
            entry.problem = PAYLOAD_INVALID
        elif text is None or not documents.is_text_of(text, context) or not entry.id.startswith(context[:16]):
            entry.problem = DOCUMENT_MISSING
        else:
            entry.question = Question(text, schema, options)

    def _end(self, entry: Ended, pipeline: Pipeline) -> None:
        running, job = entry.running, entry.running.job
        ttl, execution = running.result_ttl_s, running.execution
        job.ended_at = now()
        about: dict[str, Any] = {
            "pipeline": pipeline,
            "worker_name": running.worker,
            "execution_id": execution.id,
            "execution_started_at": execution.created_at,
            "execution_ended_at": job.ended_at,
        }
        if entry.status == "completed":
            job._result = entry.value
            job._handle_success(ttl, **about)
        else:
            job.failure_ttl = ttl
            job.set_status(JobStatus.FAILED, pipeline=pipeline)
            job._handle_failure(json.dumps(entry.value), **about)
        job.cleanup(ttl, pipeline=pipeline, remove_from_queue=False)
        pipeline.hdel(keys.CRASHES, job.id)
        if context := running.meta.get("context"):
            documents.release(pipeline, str(context), running.id, ttl)
        webhook = running.meta.get("webhook")
        event = f"job.{entry.status}"
        if webhook and event in webhook["events"]:
            deliveries.enqueue(pipeline, running.id, event, webhook["url"], webhook["secret"])


def outcome_of(running: Running, answer: Answer, batch_jobs: int, min_confidence: float | None) -> Ended:
    """What is stored for a job that was answered."""
    timings = {"queue_ms": _queue_ms(running), "prefill_ms": answer.prefill_ms, "eval_ms": answer.eval_ms}
    enqueued = running.job.enqueued_at
    timings["total_ms"] = (now() - enqueued).total_seconds() * 1e3 if enqueued else None
    timings = {name: None if ms is None else round(ms, 3) for name, ms in timings.items()}
    if answer.problem is not None:
        return Ended(running, "failed", {"error": answer.problem.to_dict(), "timings": timings})
    assert answer.stats is not None
    low = [] if min_confidence is None else [n for n, p in answer.confidences().items() if p < min_confidence]
    batch = {
        "jobs": batch_jobs,
        "contexts": answer.stats.contexts,
        "passes": answer.stats.passes,
        "shared_tokens": answer.stats.shared_tokens,
    }
    value = {"result": answer.result, "timings": timings, "batch": batch, "review": low}
    return Ended(running, "completed", value)


def _queue_ms(running: Running) -> float | None:
    enqueued, started = running.job.enqueued_at, running.job.started_at
    return (started - enqueued).total_seconds() * 1e3 if enqueued and started else None
