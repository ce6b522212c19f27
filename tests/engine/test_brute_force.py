"""The answer distributions equal a brute-force walk of each choice's tokens through plain mlx-lm calls."""

from __future__ import annotations

import pytest
from plain import distribution

from engine import Engine, Options, Request, StructuredSchema
from engine.request import LAYOUTS, SCORINGS, Layout, Scoring

CONTEXT = "The card was charged twice for one order, and nobody has answered my two e-mails."
SCHEMA = StructuredSchema(
    {
        "issue": {
            "type": "enum",
            "description": "What is the customer's problem?",
            "choices": ["double charge", "double", "late delivery", "late", "P1", "P10"],
        },
        "angry": {"type": "boolean", "description": "Is the customer angry?"},
        "urgency": {"type": "score", "description": "How urgent is it?", "levels": ["low", "medium", "high"]},
        "code": {"type": "enum", "choices": {"8703": "motor cars", "0902": "green tea", "8711": "motor cycles"}},
    }
)


@pytest.mark.parametrize("prior", [False, True], ids=["plain", "prior"])
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_choice_has_its_brute_force_probability(
    engine: Engine, layout: Layout, scoring: Scoring, prior: bool
) -> None:
    request = Request(CONTEXT, SCHEMA, Options(layout=layout, scoring=scoring, prior=prior))
    [result] = engine.run([request])
    names = SCHEMA if layout == "context_first" else ["issue"]
    for answer in result.answers:
        if answer.name in names:
            expected = distribution(engine, request, answer.name, prior)
            assert answer.probabilities == pytest.approx(expected, abs=1e-4)


def test_shown_choices_and_temperature_too(engine: Engine) -> None:
    shown = Request(CONTEXT, SCHEMA, Options(show_choices=True, prior=False))
    [result] = engine.run([shown])
    assert result.answers[0].probabilities == pytest.approx(distribution(engine, shown, "issue", False), abs=1e-4)
    [warmer] = engine.run([Request(CONTEXT, SCHEMA, Options(show_choices=True, prior=False, temperature=3.0))])
    weights = [p ** (1 / 3) for p in result.answers[0].probabilities]
    assert warmer.answers[0].probabilities == pytest.approx([w / sum(weights) for w in weights], abs=1e-6)


def test_a_score_has_its_expected_level(engine: Engine) -> None:
    [result] = engine.run([Request(CONTEXT, SCHEMA)])
    urgency = result.to_dict()["parsed_json"]["urgency"]
    low, medium, high = result.answers[2].probabilities
    assert urgency["expected"] == pytest.approx(medium + 2 * high)
    assert low + medium + high == pytest.approx(1)
    assert "expected" not in result.to_dict()["parsed_json"]["issue"]
