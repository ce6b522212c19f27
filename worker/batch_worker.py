"""The batching worker: RQ's loop with claim, start, run and finish of whole batches. One process, no fork.

Claim (claim.py) -> start (executions.py) -> one call of the runner -> finish (executions.py). A call that raises is
halved until the job that makes it raise stands alone; a call that outlives a job's time-out is interrupted. SIGTERM
lets the batch end and gives the rest back; a second one gives everything back.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any
from uuid import uuid4

from redis import Redis
from redis.exceptions import OutOfMemoryError, RedisError
from rq import Queue, SimpleWorker, worker_registration
from rq.job import Job as RQJob
from rq.serializers import JSONSerializer
from rq.timeouts import JobTimeoutException
from rq.utils import as_text, now
from rq.worker import WorkerStatus
from structlog import get_logger

from worker import buffered, job_events, keys, metrics
from worker.claim import Claims
from worker.connection import is_unavailable, suppress_unavailable
from worker.executions import Executions
from worker.lease import Lease, StepClock
from worker.problems import TIMED_OUT, JobProblem, problem_of
from worker.runner import Answer, Answerer
from worker.running import Ended, Running, outcome_of
from worker.settings import Settings
from worker.step_budget import StepBudget
from worker.throughput import Throughput

log = get_logger(__name__)

WAIT_S = 1.0  # one blocking read of an empty queue; SIGTERM is seen after it at the latest
MAINTENANCE_S = 15
RECONNECT_S = 0.5
MAX_RECONNECT_S = 10.0


class FunctionRefused(Exception):
    """RQ tried to import a job's function; Fieldcast's worker never does."""


class FieldcastJob(RQJob):
    """RQ's job, without the power to name any function of any module."""

    @property
    def func(self) -> Any:
        raise FunctionRefused("jobs of this queue are data, not code")


class BatchWorker(SimpleWorker):
    """Takes jobs from Redis in batches and has `runner` answer them.

    redis: a connection of its own, with a socket time-out above WAIT_S, for which it blocks. about: published for the
    API, as the model's description.
    """

    job_class = FieldcastJob

    def __init__(self, redis: Redis, settings: Settings, runner: Answerer, slot: str, about: dict[str, Any]) -> None:
        name = f"{slot}.{uuid4().hex}"
        super().__init__(
            [Queue(keys.QUEUE, connection=redis, serializer=JSONSerializer, job_class=FieldcastJob)],
            name=name,
            connection=redis,
            serializer=JSONSerializer,
            job_class=FieldcastJob,
            log_job_description=False,
            maintenance_interval=MAINTENANCE_S,
            worker_ttl=int(settings.lease_s) + 60,
        )
        self._settings, self._runner, self._slot = settings, runner, slot
        lease_s = math.ceil(settings.lease_s)
        self._transactions = Executions(redis, FieldcastJob, JSONSerializer, slot, name, lease_s)
        self._clock = StepClock(settings.hang_grace_s)
        self._throughput = Throughput()
        self._step_budget = StepBudget(settings.batch_tokens, settings.step_target_s)
        self._running: dict[str, Running] = {}  # started and not finished; the lease's thread renews them
        self._in_doubt = False  # an answer was lost: whether the claim or the start took place is not known
        self._started_at = time.time()
        self._lease = Lease(
            redis,
            slot,
            name,
            lease_s=settings.lease_s,
            heartbeat_s=settings.heartbeat_s,
            describe=lambda: {
                "info": about,
                "pid": self.pid,
                "host": self.hostname,
                "started_at": self._started_at,
                "last_step_at": self._clock.last_step_at,
                "in_step": self._clock.in_step,
                "jobs_per_s": self._throughput.per_second(),
            },
            renewals=self._renew,
            hung=self._clock.is_hung,
            lost=self._stop,
        )
        self._claims = Claims(
            redis,
            slot,
            self._lease.owner,
            rows=settings.batch_rows,
            tokens=self._step_budget.tokens,
            window=settings.claim_window,
            interactive_share=settings.interactive_share,
        )

    def _set_connection(self, connection: Redis) -> Redis:
        """RQ's gives every command the time of its own long blocking reads."""
        return connection

    # RQ's loop, in the order in which it calls these

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Take the slot, pick up what its last owner left, and only then be seen; from the start again where Redis is
        lost meanwhile."""
        self._install_signal_handlers()  # type: ignore[no-untyped-call]
        delay_s = RECONNECT_S
        while self._lease.take(give_up=lambda: self._stop_requested):
            try:
                given_back = self._claims.give_back()
                job_events.recovered(self._transactions.recover([f"{self._slot}."]), given_back)
                super().bootstrap(*args, **kwargs)
                self._lease.start()
            except RedisError as error:
                delay_s = _wait_for_redis(error, delay_s)
            else:
                metrics.set_worker_up()
                return

    def register_birth(self) -> None:
        """RQ's, but Redis may be full, and nobody else has a name like ours."""
        pipeline = self.connection.pipeline()
        self.birth_date = self.last_heartbeat = now()
        pipeline.hset(self.key, mapping=self.serialize())
        worker_registration.register(self, pipeline)
        pipeline.expire(self.key, self.worker_ttl + 60)
        buffered.run(self.connection, pipeline)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """RQ's, but Redis may be full."""
        if pipeline is not None:
            super().set_state(state, pipeline)
            return
        alone = self.connection.pipeline()
        super().set_state(state, alone)
        buffered.run(self.connection, alone)

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        """The ids of the next batch. RQ hands on to `execute_job` whatever this returns."""
        delay_s = RECONNECT_S
        while not self._stop_requested:
            try:
                if self._in_doubt:
                    self._pick_up_own()
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()
                ids = self._claims.take() or (self._claims.wait(WAIT_S) if timeout is not None else [])
                self._clock.stepped()
                metrics.stepped()
                if ids or timeout is None:
                    return (ids, self.queues[0]) if ids else None
                self.check_for_suspension(burst=False)  # RQ's loop does between two batches
            except RedisError as error:
                delay_s = _wait_for_redis(error, delay_s)
                self._in_doubt = True
        return None

    def execute_job(self, ids: Any, queue: Any) -> None:
        """Start, run and finish one batch."""
        try:
            batch = self._transactions.start(ids)
        except RedisError as error:
            if not is_unavailable(error):
                raise
            log.warning("the batch did not start", action="batch_not_started", jobs=len(ids))
            self._in_doubt = True
            return
        self._running = {entry.id: entry for entry in batch}
        log.info("batch started", action="batch_start", jobs=len(batch), first_job_id=ids[0])
        try:
            refused = [entry for entry in batch if entry.problem is not None]
            self._finish([_failed(entry, entry.problem) for entry in refused if entry.problem is not None])
            self._answer([entry for entry in batch if entry.problem is None])
        except SystemExit:
            self._transactions.give_back(self._running.values())
            log.warning("gave running jobs back", action="batch_given_back", jobs=len(self._running))
            raise
        finally:
            self._running = {}
            self._clock.end()

    def teardown(self) -> None:
        """Give claimed jobs back and let the slot go."""
        metrics.set_worker_up(False)
        for step in (self._claims.give_back, super().teardown, self._lease.end):
            with suppress(RedisError):
                step()

    def check_for_suspension(self, burst: bool) -> None:
        """RQ's, but Redis may be away (taking the next batch waits for it) or full (RQ's check writes)."""
        with suppress(OutOfMemoryError), suppress_unavailable():
            super().check_for_suspension(burst)

    def run_maintenance_tasks(self) -> None:
        """What RQ's would do, and what dead workers of slots that nobody took over have left. Runs between two batches,
        so what this worker has claimed then is a claim whose answer was lost."""
        self.last_cleaned_at = now()  # type: ignore[assignment]
        with suppress_unavailable():
            given_back = self._claims.give_back()
            for slot in map(as_text, self.connection.smembers(keys.SLOTS)):
                if slot != self._slot:
                    given_back += self._claims.give_back(slot)
            job_events.recovered(self._transactions.recover(), given_back)
            for registry in (self.queues[0].finished_job_registry, self.queues[0].failed_job_registry):
                registry.cleanup()
            self.connection.zremrangebyscore(keys.CANCELED, 0, time.time())
            worker_registration.clean_worker_registry(self.queues[0])

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal. Only sets a flag: a signal handler that talks to Redis or raises loses jobs (rq #2236)."""
        self._stop()
        self._shutdown_requested_date = now()
        signal.signal(signal.SIGINT, self.request_force_stop)
        signal.signal(signal.SIGTERM, self.request_force_stop)

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ asks after every job; the lease's thread does it by the clock."""
        if pipeline is not None:
            super().heartbeat(timeout, pipeline)

    def subscribe(self) -> None:
        """No commands are taken over pub/sub: cancelling goes through the job's status."""

    # One batch

    def _answer(self, batch: Sequence[Running]) -> None:
        """Answer and finish `batch`, whatever its jobs do to the runner."""
        if not batch:
            return
        late = [entry for entry in batch if time.monotonic() >= entry.deadline]
        if late:
            self._answer([entry for entry in batch if entry not in late])
            for entry in late:
                self._answer_late(entry)
            return
        if len(batch) == 1:
            batch[0].ran_alone = True
        deadline = min(entry.deadline for entry in batch)
        self._clock.begin(deadline)
        started = time.perf_counter()
        try:
            seconds = -1 if deadline == math.inf else max(1, math.ceil(deadline - time.monotonic()))
            with self.death_penalty_class(seconds, JobTimeoutException):
                answers = self._runner.answer([entry.question for entry in batch if entry.question is not None])
        except JobTimeoutException:
            self._clock.end()
            log.warning("a batch was interrupted", action="batch_timeout", jobs=len(batch))
            self._runner.reset()
            self._answer(batch)  # now some of it is late
            return
        except Exception as error:
            self._clock.end()
            self._runner.reset()
            log.error("a batch failed", action="batch_error", jobs=len(batch), error=type(error).__name__)
            if len(batch) == 1:
                self._finish([_failed(batch[0], problem_of(error))])
            else:
                half = len(batch) // 2
                self._answer(batch[:half])
                self._answer(batch[half:])
            return
        seconds_taken = time.perf_counter() - started
        self._clock.end()
        self._finish([outcome_of(entry, answer, len(batch)) for entry, answer in zip(batch, answers, strict=True)])
        if stats := next((a.stats for a in answers if a.stats is not None), None):
            metrics.observe_batch(stats)
            self._step_budget.observe(stats.computed_tokens, seconds_taken)
            self._claims.tokens = self._step_budget.tokens
            log.info(
                "batch ended", action="batch_end", jobs=len(batch), passes=stats.passes, tokens=stats.computed_tokens
            )

    def _answer_late(self, entry: Running) -> None:
        """A job whose time is up: perhaps its batch mates' doing, so it gets its whole time once more, alone."""
        if entry.ran_alone:
            self._finish([_failed(entry, TIMED_OUT)])
        else:
            entry.start_clock()
            self._answer([entry])

    def _finish(self, ended: Sequence[Ended]) -> None:
        """Store ends; waits for Redis to come back as long as nobody wants the process to stop."""
        delay_s = RECONNECT_S
        while ended:
            try:
                stored = self._transactions.finish(ended)
                break
            except RedisError as error:
                if self._stop_requested:
                    raise
                delay_s = _wait_for_redis(error, delay_s)
        else:
            return
        self._throughput.count(len(ended))
        for entry, outcome in zip(ended, stored, strict=True):
            self._running.pop(entry.running.id, None)
            if outcome == "stored":
                job_events.ended(entry)
                if entry.status == "completed":
                    self.successful_job_count += 1
                else:
                    self.failed_job_count += 1
            else:
                metrics.attempt(outcome)

    def _pick_up_own(self) -> None:
        """After a lost connection, with nothing in flight: what this worker claimed or started goes back."""
        self._claims.give_back()
        self._transactions.recover([self.name], count=False)
        self._in_doubt = False

    def _renew(self, pipeline: Any) -> None:
        self._transactions.renew(list(self._running.values()), pipeline)
        shown: dict[str, Any] = {
            "successful_job_count": self.successful_job_count,
            "failed_job_count": self.failed_job_count,
        }
        if self.get_state() != WorkerStatus.SUSPENDED:
            shown["state"] = (WorkerStatus.BUSY if self._running else WorkerStatus.IDLE).value
        pipeline.hset(self.key, mapping=shown)  # for RQ's tools
        super().heartbeat(self.worker_ttl, pipeline)

    def _stop(self) -> None:
        self._stop_requested = True


def _wait_for_redis(error: RedisError, delay_s: float) -> float:
    """Wait until an unavailable server may be back. Returns how long to wait the next time. Raises any other error."""
    if not is_unavailable(error):
        raise error
    log.warning("redis cannot be reached", action="redis_lost", error=type(error).__name__)
    time.sleep(delay_s)
    return min(2 * delay_s, MAX_RECONNECT_S)


def _failed(entry: Running, problem: JobProblem) -> Ended:
    return outcome_of(entry, Answer(None, problem), 1)
