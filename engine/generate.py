"""The two calls of the Python interface: all fields in parallel, or token by token for comparison.

Both use one engine per process, loaded at first use from FIELDCAST_MODEL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

from engine import baseline
from engine.engine import Engine
from engine.errors import OptionsError
from engine.request import Options, Request
from engine.schema import StructuredSchema


@cache
def default_engine() -> Engine:
    """The process's engine."""
    return Engine.load()


def run_parallel_generation(
    context: str, schema: StructuredSchema, *, engine: Engine | None = None, **options: Any
) -> dict[str, Any]:
    """Answer every field of `schema` about `context` at once.

    `options` are those of `engine.Options`: temperature, layout, scoring, top_k, truncate, prior, show_choices.
    Returns the result shape of the public contract. Raises `FieldcastError` (`ContextTooLong`, `OptionsError`, ...).
    """
    known = {f.name for f in fields(Options)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise OptionsError(f"unknown option {unknown[0]!r}; use one of {', '.join(sorted(known))}")
    request = Request(context, schema, replace(Options(), **options))
    return (engine or default_engine()).answer(request).to_dict()


def stream_naive_generation(
    context: str, schema: StructuredSchema, *, engine: Engine | None = None, max_tokens: int | None = None
) -> Iterator[dict[str, Any]]:
    """Have the same model write the JSON token by token, as a client without Fieldcast would; greedy.

    Yields `{"type": "token", "token": text}` and at the end `{"type": "done", "result": {...}}` with the timings, the
    text, and what is missing, made up or not allowed in it. max_tokens: None: twice what the longest answer takes.
    """
    yield from baseline.stream(engine or default_engine(), context, schema, max_tokens)
