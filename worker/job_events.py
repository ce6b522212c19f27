"""What the worker tells of jobs in its metrics and its log: ids, counts and times, never a word of a document."""

from __future__ import annotations

from structlog import get_logger

from worker import metrics
from worker.executions import Recovered
from worker.problems import TIMED_OUT
from worker.running import Ended

log = get_logger(__name__)


def ended(entry: Ended, attempt: str | None = None) -> None:
    """A job's end is stored. `attempt` is the outcome of its last attempt, where the end does not tell it."""
    preset = entry.running.about.preset
    fields = ((entry.value.get("result") or {}).get("parsed_json") or {}).values()
    confidences = [field["prob"] for field in fields]
    timings = entry.value.get("timings")
    metrics.observe_finished(preset, entry.status, timings, confidences, len(entry.value.get("review", ())))
    timed_out = (entry.value.get("error") or {}).get("type") == TIMED_OUT.type
    metrics.attempt(attempt or ("timed_out" if timed_out else entry.status))
    log.info("job ended", action="job_end", job_id=entry.running.id, status=entry.status, timings=timings)


def recovered(found: Recovered, given_back: int) -> None:
    """What dead workers left was found; `given_back` jobs had been claimed and not started."""
    if not (found.jobs or given_back):
        return
    log.warning(
        "recovered",
        action="worker_recover",
        given_back=given_back,
        requeued=found.requeued,
        quarantined=len(found.quarantined),
    )
    for _ in range(found.requeued):
        metrics.attempt("lost")
    for entry in found.quarantined:
        ended(entry, attempt="lost")
