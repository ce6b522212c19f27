"""What the engine answers: `Result`, in the public contract's shape. Plain Python; imports neither mlx nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.schema import Value


@dataclass(frozen=True)
class FieldAnswer:
    """One field's answer. `probabilities` has one entry per allowed value, in the schema's order, and sums to 1.

    legal_mass: the share of the model's whole-vocabulary probability, where the values first branch, that lies on
    tokens of allowed values. expected: for a score, the sum over levels of index times probability.
    """

    name: str
    value: Value
    values: tuple[Value, ...]
    probabilities: tuple[float, ...]
    legal_mass: float
    prior_used: bool
    expected: float | None = None

    @property
    def confidence(self) -> float:
        return max(self.probabilities)

    def top(self, k: int) -> list[tuple[Value, float]]:
        """The k most probable values, most probable first; ties in the schema's order."""
        order = sorted(range(len(self.values)), key=lambda i: -self.probabilities[i])[:k]
        return [(self.values[i], self.probabilities[i]) for i in order]


@dataclass(frozen=True)
class Usage:
    """Tokens of one request: what its prompt is long, what came from the prefix cache, what the tree computed.

    Tokens shared with other requests of the batch count for each of them.
    """

    input_tokens: int
    cached_tokens: int
    tree_tokens: int


@dataclass(frozen=True)
class Timings:
    """Milliseconds of the `Engine.run` call that answered this request. The three parts add up to `elapsed_ms`.

    prefill_ms: model calls that only fill the cache. suffix_eval_ms: the passes that the answers are read from.
    other_ms: tokenising, planning and scoring.
    """

    elapsed_ms: float
    prefill_ms: float
    suffix_eval_ms: float
    other_ms: float


@dataclass(frozen=True)
class Provenance:
    """What produced an answer, so that it can be repeated."""

    model: str
    strategy: str
    layout: str
    scoring: str
    prior: bool
    schema_id: str
    prompt_version: int
    engine: str
    calibration: str | None = None


@dataclass(frozen=True)
class BatchStats:
    """One `Engine.run` call: `passes` counts model calls one after another; `shared_tokens` those that two or more
    requests of the batch have in common and that were therefore computed or fetched once."""

    requests: int
    contexts: int
    passes: int
    computed_tokens: int
    cached_tokens: int
    shared_tokens: int


@dataclass(frozen=True)
class Result:
    """All answers of one request."""

    answers: tuple[FieldAnswer, ...]
    top_k: int
    timings: Timings
    usage: Usage
    provenance: Provenance
    batch: BatchStats

    @property
    def json(self) -> dict[str, Value]:
        """Field name to value."""
        return {a.name: a.value for a in self.answers}

    def to_dict(self) -> dict[str, Any]:
        """The public result shape (contracts, section 2)."""
        return {
            "mode": "parallel_constrained_calibrated",
            "elapsed_ms": self.timings.elapsed_ms,
            "prefill_ms": self.timings.prefill_ms,
            "suffix_eval_ms": self.timings.suffix_eval_ms,
            "other_ms": self.timings.other_ms,
            "sequential_forward_passes": self.batch.passes,
            "is_valid_json": True,
            "schema_match": True,
            "parsed_json": {a.name: _with_expected(a, {"value": a.value, "prob": a.confidence}) for a in self.answers},
            "field_telemetry": {a.name: self._telemetry(a) for a in self.answers},
            "json": self.json,
            "usage": {
                "input_tokens": self.usage.input_tokens,
                "cached_tokens": self.usage.cached_tokens,
                "tree_tokens": self.usage.tree_tokens,
            },
            "provenance": {
                "model": self.provenance.model,
                "strategy": self.provenance.strategy,
                "layout": self.provenance.layout,
                "scoring": self.provenance.scoring,
                "prior": self.provenance.prior,
                "schema_id": self.provenance.schema_id,
                "prompt_version": self.provenance.prompt_version,
                "calibration": self.provenance.calibration,
                "engine": self.provenance.engine,
            },
        }

    def _telemetry(self, answer: FieldAnswer) -> dict[str, Any]:
        return _with_expected(
            answer,
            {
                "value": answer.value,
                "confidence": answer.confidence,
                "cardinality": len(answer.values),
                "legal_mass": answer.legal_mass,
                "top_choices": [{"choice": c, "probability": p} for c, p in answer.top(self.top_k)],
            },
        )


def _with_expected(answer: FieldAnswer, shape: dict[str, Any]) -> dict[str, Any]:
    return shape if answer.expected is None else {**shape, "expected": answer.expected}
