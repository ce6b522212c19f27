"""Memory that runs out in a pass: smaller passes, then an error of its own; the next run has the whole budget again.

MLX's CPU build ends the process when an allocation fails, so the error that a GPU raises is put into the real model's
calls here, above a size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine import Engine, Request, StructuredSchema
from engine.errors import OutOfMemory
from worker.problems import problem_of
from worker.runner import Question, Runner

SCHEMA = {"topic": {"type": "enum", "choices": ["parcel", "invoice", "password"]}, "angry": {"type": "boolean"}}
REQUEST = Request("The parcel is late, and nobody answers my letters. " * 4, StructuredSchema(SCHEMA))
MESSAGES = (
    "[malloc_or_wait] Unable to allocate 1073741824 bytes.",
    "[METAL] Command buffer execution failed: Insufficient Memory (00000008)",
    "cudaMallocManaged failed: out of memory.",
)


@pytest.fixture
def short_of_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes every model call of more than `rows` tokens fail as a GPU does."""
    hidden = engine.model.hidden
    engine.forget()

    def limit(rows: int, message: str = MESSAGES[0]) -> None:
        def guarded(tokens: Any, cache: Any) -> Any:
            if tokens.size > rows:
                raise RuntimeError(message)
            return hidden(tokens, cache)

        monkeypatch.setattr(engine.model, "hidden", guarded)

    return limit


@pytest.mark.parametrize("message", MESSAGES)
def test_passes_of_half_the_size_are_tried_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, short_of_memory: Callable[..., None], message: str
) -> None:
    whole = engine.answer(REQUEST)
    engine.forget()
    budget = whole.usage.tree_tokens
    monkeypatch.setattr(engine.strategy, "pass_tokens", budget)
    short_of_memory(budget - 1, message)
    cut = engine.answer(REQUEST)
    assert (whole.batch.passes, cut.batch.passes) == (1, 2)
    for one, other in zip(whole.answers, cut.answers, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-4)
    assert engine.strategy.pass_tokens == budget


def test_what_does_not_fit_then_is_an_error_of_its_own(engine: Engine, short_of_memory: Callable[..., None]) -> None:
    budget = engine.strategy.pass_tokens
    short_of_memory(20)
    question = Question(REQUEST.context, SCHEMA, {})
    with pytest.raises(OutOfMemory) as raised:
        Runner(engine).answer([question, question])
    assert raised.value.pass_tokens == budget // 2
    problem = problem_of(raised.value)
    assert (problem.type, problem.status) == ("out_of_memory", 500)
    assert str(budget // 2) in problem.detail
    assert engine.strategy.pass_tokens == budget
    short_of_memory(10_000)
    assert engine.answer(REQUEST).answers


def test_other_errors_of_a_model_are_not_taken_for_it(engine: Engine, short_of_memory: Callable[..., None]) -> None:
    short_of_memory(20, "shapes (3,4) and (5,6) cannot be multiplied")
    with pytest.raises(RuntimeError, match="multiplied"):
        engine.answer(REQUEST)
