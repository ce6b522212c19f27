"""The job as clients see it, for the OpenAPI document; a test holds what `Job.to_dict` gives against it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from api.problems import ProblemBody


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class JobTimings(_Shape):
    """Milliseconds."""

    queue_ms: float | None = None
    prefill_ms: float | None = None
    eval_ms: float | None = None
    total_ms: float | None = None


class JobBatch(_Shape):
    """The `Engine.run` call that answered the job."""

    jobs: int
    contexts: int
    passes: int = Field(description="Model calls one after another.")
    shared_tokens: int = Field(description="Tokens that two or more jobs had in common and that were computed once.")


class JobLinks(_Shape):
    self: str
    events: str
    cancel: str


class JobBody(_Shape):
    """One job. Once it has ended, exactly one of `result` and `error` is given, unless it was cancelled or expired."""

    id: str
    object: Literal["job"]
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "expired"]
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None
    expires_at: AwareDatetime | None
    queue_position: int | None = Field(description="1 is next.")
    attempts: int
    result: dict[str, Any] | None
    error: ProblemBody | None
    timings: JobTimings | None
    batch: JobBatch | None
    review: list[str] = Field(description="Fields answered with less than `min_confidence`.")
    metadata: dict[str, str]
    links: JobLinks
