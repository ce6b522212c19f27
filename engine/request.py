"""What the engine is asked: `Request` and its `Options`. Plain Python; imports neither mlx nor numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from engine.errors import OptionsError
from engine.schema import MAX_CHOICES, StructuredSchema

Layout = Literal["context_first", "schema_first", "joint"]
Scoring = Literal["branch", "sequence"]
Truncate = Literal["error", "head", "tail"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)
TRUNCATIONS: tuple[Truncate, ...] = get_args(Truncate)
MAX_TEMPERATURE = 100.0


@dataclass(frozen=True)
class Options:
    """How a request is answered. Raises `OptionsError` for a value outside its range.

    layout: what is trunk and what is branch (see engine/prompt.py).
    scoring: `branch` is the distribution of grammar-constrained sampling; `sequence` the whole value's likelihood.
    temperature: divides the log-scores before the softmax; above 0, at most 100.
    top_k: how many choices `field_telemetry` lists, 1 to 255.
    truncate: what happens to a context that is too long: an error, or keep its head or its tail.
    prior: subtract the content-free prior; None: for enum and score, not for boolean.
    show_choices: list the choices in the prompt; None: the prompt version's default (hidden).
    """

    layout: Layout = "context_first"
    scoring: Scoring = "sequence"
    temperature: float = 1.0
    top_k: int = 5
    truncate: Truncate = "error"
    prior: bool | None = None
    show_choices: bool | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("layout", self.layout, LAYOUTS),
            ("scoring", self.scoring, SCORINGS),
            ("truncate", self.truncate, TRUNCATIONS),
        ):
            if value not in allowed:
                raise OptionsError(f"{name} is {value!r}; use one of {', '.join(allowed)}")
        if not (math.isfinite(self.temperature) and 0 < self.temperature <= MAX_TEMPERATURE):
            raise OptionsError(f"temperature is {self.temperature}; it must be above 0 and at most {MAX_TEMPERATURE:g}")
        if not 1 <= self.top_k <= MAX_CHOICES:
            raise OptionsError(f"top_k is {self.top_k}; it must be 1 to {MAX_CHOICES}")


@dataclass(frozen=True)
class Request:
    """One document and the schema to answer about it."""

    context: str
    schema: StructuredSchema
    options: Options = field(default_factory=Options)
