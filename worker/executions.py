"""Starting, ending and recovering jobs in Redis: one script call per batch, with RQ's own per-job methods inside.

The order of the writes is what makes a crash harmless. A claimed id is in the slot's claimed list until the script that
marks it started; a started job is in RQ's registry until the script that stores its end. So at any moment a job that
has not ended is found in exactly one of the queue, a claimed list, or the registry.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from redis import Redis
from redis.client import Pipeline
from rq.executions import Execution
from rq.job import Job as RQJob
from rq.job import JobStatus
from rq.utils import as_text, now

from worker import buffered, deliveries, documents, keys
from worker.problems import QUARANTINED
from worker.running import Ended, Running

CRASHES_ALLOWED = 1  # a job that was running in one more crash than this is quarantined
Stored = Literal["stored", "cancelled", "lost"]

# KEYS: claimed list, costs, then job hashes. ARGV: prefix of documents, then per job: its id, its commands.
# Only what is still in our claimed list may be started: an id that is not was given back when our lease ran out, and
# may run elsewhere by now. Returns per job its hash as it was (or false: not started), then the documents by their ids.
START = (
    buffered.RUN
    + """
local hashes, texts, seen = {}, {}, {}
local function attach(raw)
  local readable, meta = pcall(cjson.decode, raw or '')
  local context = readable and type(meta) == 'table' and meta.context
  if type(context) ~= 'string' or seen[context] then return end
  seen[context] = true
  local text = redis.pcall('GET', ARGV[1] .. context)
  if type(text) ~= 'string' then return end
  texts[#texts + 1] = context
  texts[#texts + 1] = text
end
local at = 2
for i = 3, #KEYS do
  local key, id = KEYS[i], ARGV[at]
  local ours = redis.call('LREM', KEYS[1], 0, id) > 0
  local exists = redis.call('TYPE', key).ok == 'hash'
  local go = ours and exists and redis.call('HGET', key, 'status') == 'queued'
  hashes[#hashes + 1] = go and redis.call('HGETALL', key)
  if go then attach(redis.call('HGET', key, 'meta')) end
  if not exists then redis.call('HDEL', KEYS[2], id) end
  at = run(at + 1, go)
end
return {hashes, texts}
"""
)

# KEYS: costs, crashes, then job hashes. ARGV: channel, then per job: its id, the worker that ran it, its document, how
# long that is kept, the commands that store its end, and those that end the execution in any case.
# Only a job that this worker is still running is ended: one that was cancelled, or recovered by another worker, keeps
# the state it has. (One that this worker has ended already was stored by a call whose answer was lost.)
FINISH = (
    buffered.RUN
    + documents.RELEASE
    + """
local outcomes, ended, at = {}, {}, 2
for i = 3, #KEYS do
  local id = ARGV[at]
  local state = redis.call('HMGET', KEYS[i], 'status', 'worker_name')
  local mine = state[2] == ARGV[at + 1]
  local wanted = mine and state[1] == 'started'
  if wanted then
    outcomes[#outcomes + 1] = 'stored'
    ended[#ended + 1] = id
    redis.call('HDEL', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
    if ARGV[at + 2] ~= '' then release(ARGV[at + 2], id, ARGV[at + 3]) end
  elseif mine and (state[1] == 'finished' or state[1] == 'failed') then outcomes[#outcomes + 1] = 'stored'
  elseif state[1] == 'canceled' then outcomes[#outcomes + 1] = 'cancelled'
  else outcomes[#outcomes + 1] = 'lost' end
  at = run(at + 4, wanted)
  at = run(at, true)
end
if #ended > 0 then redis.call('PUBLISH', ARGV[1], cjson.encode({ids = ended})) end
return outcomes
"""
)

# KEYS: job, queue, crashes, started registry. ARGV: job id, registry entry, the worker that ran it, 1 to count a crash,
# crashes allowed, the lease's end as it was seen, and the commands that end the execution.
# 0: not that worker's any more; 1: queued again; 2: has crashed too often, still started, to be failed.
REQUEUE = (
    buffered.RUN
    + """
local lease_end = redis.call('ZSCORE', KEYS[4], ARGV[2])
if not lease_end or (ARGV[6] ~= '' and tonumber(lease_end) ~= tonumber(ARGV[6])) then return 0 end  -- renewed, or ended
local state = redis.call('HMGET', KEYS[1], 'status', 'worker_name')
if state[1] ~= 'started' or state[2] ~= ARGV[3] then
  run(7, true)
  return 0
end
if ARGV[4] == '1' and redis.call('HINCRBY', KEYS[3], ARGV[1], 1) > tonumber(ARGV[5]) then return 2 end
redis.call('HSET', KEYS[1], 'status', 'queued', 'started_at', '')
redis.call('LPUSH', KEYS[2], ARGV[1])
run(7, true)
return 1
"""
)


@dataclass(frozen=True)
class Recovered:
    """What a recovery found: how many jobs are queued again, and the ends of those that are given up."""

    requeued: int
    quarantined: tuple[Ended, ...]

    @property
    def jobs(self) -> int:
        return self.requeued + len(self.quarantined)


class Executions:
    """Script calls of one worker, named `worker_name`, in `slot`."""

    def __init__(
        self, redis: Redis, job_class: type[RQJob], serializer: Any, slot: str, worker_name: str, lease_s: int
    ):
        self._redis = redis
        self._job_class, self._serializer = job_class, serializer
        self._slot, self._worker_name, self._lease_s = slot, worker_name, lease_s
        self._start = redis.register_script(START)
        self._finish = redis.register_script(FINISH)
        self._requeue = redis.register_script(REQUEUE)

    def start(self, ids: Sequence[str]) -> list[Running]:
        """Mark claimed jobs started, all in one step, and read what they ask.

        Jobs that were cancelled or deleted since they were queued, or given back for us, are left out and stay as they
        are.
        """
        started, args = [], [keys.document("")]
        pipeline = self._redis.pipeline()
        for job_id in dict.fromkeys(ids):
            job = self._job(job_id)
            execution = Execution.create(job, self._lease_s, pipeline, self._worker_name)
            job.prepare_for_execution(self._worker_name, pipeline=pipeline)
            pipeline.hincrby(job.key, "fieldcast_attempts", 1)
            pipeline.persist(job.key)
            args += [job_id, *buffered.take(pipeline)]
            started.append(Running(job, execution, self._worker_name))
        job_keys = [entry.job.key for entry in started]
        hashes, texts = self._start(keys=[keys.claimed(self._slot), keys.COSTS, *job_keys], args=args)
        documents_by_id = dict(zip(texts[::2], texts[1::2], strict=True))
        kept = []
        for entry, stored in zip(started, hashes, strict=True):
            if stored is None:
                continue
            entry.read(dict(zip(stored[::2], stored[1::2], strict=True)))
            if entry.problem is None:
                entry.attach(documents_by_id.get(entry.about.context.encode()))
            kept.append(entry)
        return kept

    def finish(self, ended: Sequence[Ended]) -> list[Stored]:
        """Store the ends of jobs, their webhooks and the news of it, in one step. Says for each what became of it."""
        args: list[Any] = [keys.DONE_CHANNEL]
        pipeline = self._redis.pipeline()
        for entry in ended:
            running = entry.running
            args += [running.id, running.worker, running.about.context, running.result_ttl_s]
            self._end(entry, pipeline)
            args += buffered.take(pipeline)
            running.execution.delete(running.job, pipeline)
            args += buffered.take(pipeline)
        job_keys = [entry.running.job.key for entry in ended]
        outcomes: list[Any] = self._finish(keys=[keys.COSTS, keys.CRASHES, *job_keys], args=args)
        return [as_text(outcome) for outcome in outcomes]  # type: ignore[misc]

    def give_back(self, running: Iterable[Running]) -> None:
        """Put started jobs back to the queue's front without counting it against them."""
        for entry in reversed(list(running)):
            self._requeue_one(entry.id, entry.execution.composite_key, entry.worker, count=False)

    def recover(self, names: Iterable[str] = (), *, count: bool = True) -> Recovered:
        """Queue again what dead workers were running: jobs whose lease has run out, and those of workers whose names
        begin with one of `names`, which are known to be gone."""
        prefixes = tuple(names)
        requeued, quarantined = 0, []
        entries: Any = self._redis.zrange(keys.STARTED, 0, -1, withscores=True)
        for raw, lease_end in entries:
            composite = as_text(raw)
            job_id = composite.partition(":")[0]
            worker = as_text(self._redis.hget(keys.job(job_id), "worker_name") or b"")
            if lease_end > time.time() and not (prefixes and worker.startswith(prefixes)):
                continue
            outcome = self._requeue_one(job_id, composite, worker, count=count, lease_end=lease_end)
            requeued += outcome == 1
            if outcome == 2:
                quarantined += self._quarantine(job_id, composite, worker)
        return Recovered(requeued, tuple(quarantined))

    def renew(self, running: Iterable[Running], pipeline: Pipeline) -> None:
        """Buffer the renewal of the leases of `running`."""
        for entry in running:
            entry.execution.heartbeat(entry.job.started_job_registry, self._lease_s, pipeline)

    def _requeue_one(
        self, job_id: str, composite: str, worker: str, *, count: bool, lease_end: float | None = None
    ) -> int:
        pipeline = self._redis.pipeline()
        self._execution(composite, worker).delete(self._job(job_id), pipeline)
        seen = "" if lease_end is None or math.isinf(lease_end) else repr(lease_end)
        return int(
            self._requeue(
                keys=[keys.job(job_id), keys.QUEUE_LIST, keys.CRASHES, keys.STARTED],
                args=[job_id, composite, worker, int(count), CRASHES_ALLOWED, seen, *buffered.take(pipeline)],
            )
        )

    def _quarantine(self, job_id: str, composite: str, worker: str) -> list[Ended]:
        entry = Running(self._job(job_id), self._execution(composite, worker), worker)
        entry.read(self._redis.hgetall(keys.job(job_id)))  # type: ignore[arg-type]
        ended = Ended(entry, "failed", {"error": QUARANTINED.to_dict()})
        return [ended] if self.finish([ended]) == ["stored"] else []

    def _job(self, job_id: str) -> RQJob:
        job = self._job_class(job_id, connection=self._redis, serializer=self._serializer)
        job.origin = keys.QUEUE
        return job

    def _execution(self, composite: str, worker: str) -> Execution:
        execution = Execution.from_composite_key(composite, self._redis)
        execution.worker_name = worker
        return execution

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
        webhook, event = running.about.webhook, f"job.{entry.status}"
        if webhook is not None and event in webhook.events:
            deliveries.enqueue(pipeline, running.id, event, webhook.url, webhook.secret, running.requeues)
