"""A started job as its worker holds it, what is stored about it, and its end. Sends nothing to Redis.

Whoever can write to Redis can write a job; so everything that is read here is checked before it is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rq.exceptions import DeserializationError
from rq.executions import Execution
from rq.job import UNEVALUATED, JobStatus
from rq.job import Job as RQJob
from rq.utils import now

from worker import documents, keys
from worker.deliveries import endpoint_of
from worker.jobs import DEFAULT_TTL_S, FUNCTION, Webhook
from worker.problems import DOCUMENT_MISSING, FUNCTION_REFUSED, PAYLOAD_INVALID, JobProblem
from worker.runner import Answer, Question

UNREADABLE_TIMEOUT_S = 60


@dataclass(frozen=True)
class About:
    """What Fieldcast keeps of a job in RQ's `meta`. `context` is the document's id."""

    context: str = ""
    preset: str | None = None
    min_confidence: float | None = None
    webhook: Webhook | None = None

    @classmethod
    def read(cls, meta: Any) -> About:
        """Raises an exception of any type when `meta` is not what `jobs.submit` writes."""
        found = cls(meta.get("context", ""), meta.get("preset"), meta.get("min_confidence"), _webhook(meta))
        if not isinstance(found.preset, str | None) or not isinstance(found.min_confidence, int | float | None):
            raise TypeError("preset or min_confidence")
        if found.context and not documents.is_id(found.context):
            raise ValueError("context")
        return found


def _webhook(meta: Any) -> Webhook | None:
    given = meta.get("webhook")
    if given is None:
        return None
    found = Webhook(given["url"], tuple(given["events"]), given["secret"])
    for text in (found.url, *found.events, found.secret or ""):
        text.encode()
    endpoint_of(found.url)
    return found


@dataclass
class Running:
    """A started job. `deadline` is on the monotonic clock; `worker` is the name it was started under. `ran_alone`: it
    has had a run without batch mates, so that a time-out is its own."""

    job: RQJob
    execution: Execution
    worker: str
    about: About = field(default_factory=About)
    question: Question | None = None
    problem: JobProblem | None = None  # why it cannot be run at all
    deadline: float = float("inf")
    ran_alone: bool = False
    requeues: int = 0  # how often it was queued again by hand

    @property
    def id(self) -> str:
        return str(self.job.id)

    @property
    def result_ttl_s(self) -> int:
        return int(self.job.result_ttl or DEFAULT_TTL_S)

    def read(self, stored: Mapping[bytes, Any]) -> None:
        """Take over what the job's hash holds."""
        job = self.job
        started_at = job.started_at
        try:
            job.restore(stored)
        except Exception:  # whatever RQ raises for fields that RQ did not write
            self.problem = PAYLOAD_INVALID
            self._make_readable()
        try:
            if job.func_name != FUNCTION:
                self.problem = FUNCTION_REFUSED
        except DeserializationError:
            self.problem = PAYLOAD_INVALID
        try:
            self.about = About.read(job.meta)
        except Exception:  # what the wrong types of a hand-made job raise
            self.problem = PAYLOAD_INVALID
            context = job.meta.get("context") if isinstance(job.meta, dict) else None
            self.about = About(str(context)) if documents.is_id(context) else About()  # it is released all the same
        with suppress(ValueError):
            self.requeues = int(stored.get(keys.REQUEUES.encode(), 0))
        job.origin = keys.QUEUE
        job.started_at = started_at or job.started_at
        job.worker_name, job._status = self.worker, JobStatus.STARTED
        self.start_clock()

    def start_clock(self) -> None:
        """The job's time counts from now."""
        timeout_s = float(self.job.timeout or 0)
        self.deadline = time.monotonic() + timeout_s if timeout_s > 0 else float("inf")

    def attach(self, text: bytes | None) -> None:
        """Make the job's question of its payload and its document, or say why it has none."""
        context = self.about.context
        try:
            [payload] = self.job.args
            named, schema, options = payload["context"], payload["schema"], payload["options"]
            readable = isinstance(schema, dict) and isinstance(options, dict) and named == context
        except Exception:  # whatever a hand-made job's arguments raise when they are read
            readable = False
        document = None
        with suppress(AttributeError, UnicodeDecodeError):
            document = text.decode()  # type: ignore[union-attr]
        if not readable:
            self.problem = PAYLOAD_INVALID
        elif document is None or not documents.is_text_of(document, context) or not self.id.startswith(context[:16]):
            self.problem = DOCUMENT_MISSING
        else:
            self.question = Question(document, schema, options)

    def _make_readable(self) -> None:
        """Replace what RQ could not read, so that it can read the job once its failure is stored."""
        job = self.job
        if job._data is UNEVALUATED:
            job.data = b""
        job.timeout = job.timeout or UNREADABLE_TIMEOUT_S
        job.result_ttl = job.result_ttl or DEFAULT_TTL_S


@dataclass(frozen=True)
class Ended:
    """A job's end: what is stored of it. `value` is JSON; for a failure it takes a traceback's place."""

    running: Running
    status: str  # completed or failed
    value: dict[str, Any]


def outcome_of(running: Running, answer: Answer, batch_jobs: int) -> Ended:
    """What is stored for a job that was answered in a batch of `batch_jobs`."""
    timings = {"queue_ms": _queue_ms(running), "prefill_ms": answer.prefill_ms, "eval_ms": answer.eval_ms}
    enqueued = running.job.enqueued_at
    timings["total_ms"] = (now() - enqueued).total_seconds() * 1e3 if enqueued else None
    timings = {name: None if ms is None else round(ms, 3) for name, ms in timings.items()}
    if answer.problem is not None:
        return Ended(running, "failed", {"error": answer.problem.to_dict(), "timings": timings})
    assert answer.stats is not None
    at_least = running.about.min_confidence
    low = [] if at_least is None else [n for n, p in answer.confidences().items() if p < at_least]
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
