"""Quantised and half-precision weights, as a GPU keeps them: close to the model's own forward, and the same every time.

On MLX's CPU backend `engine.models.load` makes every weight float32, so these models are handed to the engine directly.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from plain import distribution
from small_models import SCHEMA, small_config, small_model

from engine import Engine, Options, Request
from engine.models import LoadedModel
from engine.settings import ModelSettings

# Weights, and the most by which a probability may differ from a plain walk in the same precision. Half precision
# rounds each of a pass's sums, in an order that depends on the shapes.
PRECISIONS = {"4-bit": 1e-4, "8-bit": 1e-4, "float16": 0.01, "bfloat16": 0.05}
REQUESTS = [
    Request("The card was charged twice for one order, and nobody has answered my two e-mails.", SCHEMA),
    Request("Merci, tout va bien.", SCHEMA),
    Request("The card was charged twice for one order.", SCHEMA, Options(layout="schema_first", scoring="branch")),
]


@pytest.fixture(scope="module", params=[(p, tied) for p in PRECISIONS for tied in (True, False)], ids=str)
def precise(request: pytest.FixtureRequest, engine: Engine) -> tuple[str, Engine]:
    """The name of a precision, and an engine on a toy that has it, with a head of its own or tied to the embedding."""
    precision, tied = request.param
    model = small_model(small_config("qwen2", tie_word_embeddings=tied))
    if precision.endswith("bit"):
        nn.quantize(model, group_size=32, bits=int(precision[0]))
    else:
        model.set_dtype(getattr(mx, precision))
    loaded = LoadedModel(model, engine.tokenizer._tokenizer, "toy", Path())
    return precision, Engine(loaded, ModelSettings(pass_tokens=256))


def test_answers_agree_with_a_plain_walk(precise: tuple[str, Engine]) -> None:
    precision, engine = precise
    assert engine.info.strategy == "packed"
    for request, result in zip(REQUESTS, engine.run(REQUESTS), strict=True):
        [answer, *_] = result.answers
        expected = distribution(engine, request, answer.name, prior=answer.prior_used)
        assert answer.probabilities == pytest.approx(expected, abs=PRECISIONS[precision])


def test_a_repeated_run_gives_identical_answers(precise: tuple[str, Engine]) -> None:
    _, engine = precise

    def answers() -> list[tuple[float, ...]]:
        engine.forget()
        return [answer.probabilities for result in engine.run(REQUESTS) for answer in result.answers]

    assert answers() == answers()
