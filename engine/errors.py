"""The engine's typed errors. Imports nothing, so every part may use them.

Each error has a `type` (a stable word that clients can match on) and a message that says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong at one place. `loc` is the path to it, such as ("priority", "choices", 2)."""

    loc: tuple[str | int, ...]
    msg: str


class FieldcastError(Exception):
    """Base of every error that Fieldcast raises on purpose."""

    type = "internal_error"


class SchemaError(FieldcastError):
    """The schema cannot be answered; `problems` names each field and why."""

    type = "invalid_schema"

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{'.'.join(map(str, p.loc)) or 'schema'}: {p.msg}" for p in problems))


class OptionsError(FieldcastError):
    """An option's value is outside its range."""

    type = "invalid_options"


class InvalidContext(FieldcastError):
    """The context is not text that can be tokenised (empty, or not valid Unicode)."""

    type = "invalid_context"


class ContextTooLong(FieldcastError):
    """The prompt needs more positions than the model has."""

    type = "context_too_long"

    def __init__(self, context_tokens: int, available_tokens: int, model_limit: int) -> None:
        self.context_tokens = context_tokens
        self.available_tokens = available_tokens
        self.model_limit = model_limit
        super().__init__(
            f"the context has {context_tokens} tokens, but only {available_tokens} of the model's {model_limit} "
            f"are left beside the schema; shorten it or set truncate to 'head' or 'tail'"
        )


class OutOfMemory(FieldcastError):
    """A pass does not fit the device's memory, not even at half the size that passes may have."""

    type = "out_of_memory"

    def __init__(self, pass_tokens: int) -> None:
        self.pass_tokens = pass_tokens
        super().__init__(
            f"the device ran out of memory, also with at most {pass_tokens} tokens in a pass; "
            f"shorten the context, or run the worker with less FIELDCAST_PASS_TOKENS"
        )


class ModelUnavailable(FieldcastError):
    """The model's files cannot be had: unknown name, no network, wrong hash, broken folder."""

    type = "model_unavailable"


class ModelUnsupported(FieldcastError):
    """The model loads, but its answers cannot be made to agree with its own sequential forward."""

    type = "model_unsupported"
