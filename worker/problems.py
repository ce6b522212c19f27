"""How a job that failed says why: the problem that its `error` holds. Imports the engine's errors only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.errors import FieldcastError, OutOfMemory, SchemaError

TITLES = {422: "The request cannot be answered", 500: "Internal error", 504: "Timed out"}


@dataclass(frozen=True)
class JobProblem:
    """A failed job's `error`. `type` is a stable word; `detail` never holds text of the document."""

    type: str
    detail: str
    status: int = 422
    errors: tuple[dict[str, Any], ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        title = TITLES.get(self.status, "Error")
        return {
            "type": self.type,
            "title": title,
            "status": self.status,
            "detail": self.detail,
            "errors": list(self.errors),
        }


def problem_of(error: BaseException) -> JobProblem:
    """The problem for what the engine returned or raised. Unexpected errors are named by their type alone, because
    their messages may quote the document."""
    if isinstance(error, SchemaError):
        places = tuple({"loc": ["schema", *p.loc], "msg": p.msg} for p in error.problems)
        return JobProblem(error.type, str(error), errors=places)
    if isinstance(error, FieldcastError):
        return JobProblem(error.type, str(error), status=500 if isinstance(error, OutOfMemory) else 422)
    return JobProblem("internal_error", f"the engine raised {type(error).__name__}", status=500)


TIMED_OUT = JobProblem("timed_out", "the job ran longer than its timeout_s", status=504)
QUARANTINED = JobProblem(
    "quarantined", "the job was running each of the two times that its worker process died, and is not tried again", 500
)
FUNCTION_REFUSED = JobProblem("function_refused", "the job names a function that this queue does not run")
PAYLOAD_INVALID = JobProblem("payload_invalid", "the job's arguments are not what Fieldcast enqueues")
DOCUMENT_MISSING = JobProblem("document_missing", "the job's document is no longer stored, or is not what its id says")
