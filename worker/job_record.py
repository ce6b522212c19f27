"""A job as clients see it, read from RQ's hash and result stream. Imports RQ; never mlx."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.asyncio.client import Pipeline
from rq.job import JobStatus
from rq.results import Result

from worker import keys
from worker.problems import JobProblem

STATUSES = {
    JobStatus.FINISHED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.STARTED: "in_progress",
    JobStatus.CANCELED: "cancelled",
    JobStatus.STOPPED: "cancelled",
}


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


def look(pipeline: Pipeline, job_id: str) -> None:
    """Buffers what `found` reads."""
    pipeline.hgetall(keys.job(job_id))
    pipeline.xrevrange(keys.results(job_id), count=1)
    pipeline.execute_command("LPOS", keys.QUEUE_LIST, job_id)


def found(job_id: str, stored: Mapping[bytes, Any], results: list[Any], position: int | None) -> Job | None:
    """The job, or None when there is none."""
    return read(job_id, stored, results, position) if b"status" in stored else None


def read(job_id: str, stored: Mapping[bytes, Any], results: list[Any], position: int | None) -> Job:
    """The job of this hash; of its last result, if it has one; and of its place in the queue, from 0."""

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
