"""The model side of Fieldcast: schemas in, typed answers with probabilities out. Knows neither Redis nor HTTP.

Importing this package does not import mlx; the names that need it load it at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import ContextTooLong, FieldcastError, InvalidContext, OptionsError, OutOfMemory, SchemaError
from engine.request import Options, Request
from engine.result import Result
from engine.schema import FieldDefinition, StructuredSchema
from engine.version import __version__

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.generate import run_parallel_generation, stream_naive_generation

__all__ = [
    "ContextTooLong",
    "Engine",
    "FieldDefinition",
    "FieldcastError",
    "InvalidContext",
    "Options",
    "OptionsError",
    "OutOfMemory",
    "Request",
    "Result",
    "SchemaError",
    "StructuredSchema",
    "__version__",
    "run_parallel_generation",
    "stream_naive_generation",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from engine.engine import Engine

        return Engine
    if name in ("run_parallel_generation", "stream_naive_generation"):
        from engine import generate

        return getattr(generate, name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
