"""The body of `POST /v1/jobs` and its way to a `JobSpec`. Imports only what needs no mlx of engine, presets, worker."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator

import presets
from api.problems import FieldError, Invalid, from_schema_error
from engine.errors import SchemaError
from engine.request import MAX_TEMPERATURE, Layout, Options, Scoring, Truncate
from engine.schema import MAX_CHOICES, StructuredSchema
from worker.deliveries import WebhookInvalid, check_webhook
from worker.jobs import JobSpec, Webhook
from worker.settings import Settings

MAX_METADATA_ENTRIES = 16
MAX_METADATA_KEY_CHARACTERS = 64
MAX_METADATA_VALUE_CHARACTERS = 512
MAX_TIMEOUT_S = 3600
MAX_RESULT_TTL_S = 30 * 86400

Event = Literal["job.completed", "job.failed"]


class _Body(BaseModel):
    # Strict: "1" is not 1. Inputs are kept out of error messages, because those may be logged.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class OptionsBody(_Body):
    """How the document is read and answered."""

    layout: Layout = Field(default="context_first", description="What the fields share: see the layouts in the README.")
    scoring: Scoring = Field(default="sequence", description="How a value's probability is taken from its tokens.")
    temperature: float = Field(
        default=1.0, gt=0, le=MAX_TEMPERATURE, description="Divides the log-scores before the softmax."
    )
    top_k: int = Field(default=5, ge=1, le=MAX_CHOICES, description="Choices listed per field in `field_telemetry`.")
    min_confidence: float | None = Field(
        default=None, ge=0, le=1, description="Fields answered below it are in `review`."
    )
    truncate: Truncate = Field(default="error", description="What happens to a context that is too long.")
    prior: StrictBool | None = Field(
        default=None, description="Subtract the content-free prior; null: enum and score only."
    )
    show_choices: StrictBool | None = Field(
        default=None, description="List the choices in the prompt; null: the default."
    )

    def options(self) -> Options:
        return Options(**self.model_dump(exclude={"min_confidence"}))


class WebhookBody(_Body):
    """Where the job is posted when it has ended."""

    url: str = Field(max_length=2048)
    events: list[Event] = Field(default=["job.completed", "job.failed"], min_length=1, max_length=2)
    secret: str | None = Field(
        default=None, description="`whsec_` and the base64 of 24 to 64 random bytes: signs deliveries."
    )


class JobRequest(_Body):
    """One document and what is asked about it: exactly one of `schema` and `preset`."""

    context: str = Field(min_length=1, description="The document.")
    schema_: dict[str, Any] | None = Field(default=None, alias="schema", description="Field name to field.")
    preset: str | None = Field(default=None, description="Name of a stored schema; see /v1/presets.")
    options: OptionsBody = OptionsBody()
    priority: Literal["interactive", "bulk"] = Field(default="bulk", description="Interactive jobs go first.")
    timeout_s: int = Field(
        default=60,
        ge=1,
        le=MAX_TIMEOUT_S,
        description="Seconds the job may run once it has started; slow batch mates do not use them up.",
    )
    result_ttl_s: int | None = Field(default=None, ge=1, le=MAX_RESULT_TTL_S, description="Seconds the result is kept.")
    metadata: dict[str, str] = Field(
        default={}, max_length=MAX_METADATA_ENTRIES, description="Yours; returned with the job."
    )
    webhook: WebhookBody | None = None

    @field_validator("metadata")
    @classmethod
    def _metadata_is_short(cls, metadata: dict[str, str]) -> dict[str, str]:
        for key, value in metadata.items():
            if len(key) > MAX_METADATA_KEY_CHARACTERS or len(value) > MAX_METADATA_VALUE_CHARACTERS:
                raise ValueError(
                    f"keys may have {MAX_METADATA_KEY_CHARACTERS} and values {MAX_METADATA_VALUE_CHARACTERS} characters"
                )
        return metadata

    @model_validator(mode="after")
    def _one_source(self) -> JobRequest:
        if (self.schema_ is None) == (self.preset is None):
            raise ValueError("give exactly one of schema and preset")
        return self

    def spec(self, settings: Settings, tenant: str) -> JobSpec:
        """The job to submit. Raises `Invalid` (422) for what only the schema, preset or address rules can tell."""
        return JobSpec(
            context=self.context,
            schema=self._schema(),
            preset=self.preset,
            options=self.options.options(),
            min_confidence=self.options.min_confidence,
            lane=self.priority,
            timeout_s=self.timeout_s,
            result_ttl_s=self.result_ttl_s or settings.result_ttl_s,
            metadata=self.metadata,
            webhook=self._webhook(settings),
            tenant=tenant,
        )

    def _schema(self) -> StructuredSchema:
        if self.preset is not None:
            try:
                return presets.load(self.preset).schema
            except presets.UnknownPreset:
                known = ", ".join(presets.names())
                error = FieldError(("body", "preset"), f"is unknown; the presets are {known}")
                raise Invalid([error], type="unknown_preset") from None
        assert self.schema_ is not None  # _one_source
        try:
            return StructuredSchema(self.schema_)
        except SchemaError as error:
            raise from_schema_error(error, ("body", "schema")) from None

    def _webhook(self, settings: Settings) -> Webhook | None:
        if self.webhook is None:
            return None
        try:
            check_webhook(self.webhook, settings)
        except WebhookInvalid as error:
            errors = [FieldError(("body", "webhook", *p.loc), p.msg) for p in error.problems]
            raise Invalid(errors, type=error.type) from None
        return Webhook(url=self.webhook.url, events=tuple(self.webhook.events), secret=self.webhook.secret)
