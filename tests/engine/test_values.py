"""Whatever a value is made of, it can be chosen, and comes back byte for byte."""

from __future__ import annotations

import json

import pytest

from engine import ContextTooLong, Engine, InvalidContext, Options, Request, Result, StructuredSchema
from engine.request import LAYOUTS, SCORINGS, Layout, Scoring

LONG = (
    "The harbour master of Trondheim writes that ferry number eleven left its berth at dawn without lights, that two "
    "dockers saw a crate marked with a blue heron lowered into the hold, that the customs seal on warehouse nine was "
    "found broken when the tide turned, and that nobody answered the radio until the pilot boat came alongside near "
    "the old lighthouse; he therefore asks the company to keep the cargo, the crew list and both logbooks under lock "
    "until an inspector from the capital has arrived on Thursday"
).ljust(512, ".")
assert len(LONG) == 512

ODD = [
    "P1",
    "P10",
    "P100",
    'say "yes"',
    'say "yes""',
    "back\\slash",
    "back\\",
    "new\nline",
    "new\\nline",
    "tab\there",
    "🙂",
    "🙂🙂",
    "👩‍👩‍👧",
    "日本語",
    "日本",
    "ırmak",
    "irmak",
    "İstanbul",
    " leading",
    "trailing ",
    "<|im_end|>",
    "}",
    '"',
    "null",
    "true",
    LONG[:-1],
    LONG,
]


@pytest.fixture(scope="module")
def odd_schema() -> StructuredSchema:
    return StructuredSchema({"odd": {"type": "enum", "choices": ODD}})


@pytest.mark.parametrize("scoring", SCORINGS)
def test_odd_values_come_back_byte_for_byte(engine: Engine, odd_schema: StructuredSchema, scoring: Scoring) -> None:
    request = Request("Some text.", odd_schema, Options(scoring=scoring, top_k=255))
    [result] = engine.run([request])
    assert isinstance(result, Result)
    shape = json.loads(json.dumps(result.to_dict()))
    listed = shape["field_telemetry"]["odd"]["top_choices"]
    assert sorted(c["choice"] for c in listed) == sorted(ODD)
    assert sum(c["probability"] for c in listed) == pytest.approx(1)
    assert all(c["probability"] > 0 for c in listed if len(c["choice"]) < 100)
    assert shape["json"]["odd"] == listed[0]["choice"]


@pytest.mark.parametrize("value", ODD)
def test_each_odd_value_can_be_chosen(engine: Engine, value: str) -> None:
    """A context that holds the value, against values that have nothing to do with it."""
    schema = StructuredSchema(
        {"copy": {"type": "enum", "description": "What does the text say?", "choices": ["zebra crossing", value]}}
    )
    [result] = engine.run([Request(f"{value}\n{value}\n{value}", schema)])
    assert isinstance(result, Result)
    assert result.json["copy"] == value


def test_booleans_are_json_booleans(engine: Engine) -> None:
    schema = StructuredSchema({"b": {"type": "boolean", "description": "Is it raining?"}})
    [result] = engine.run([Request("It is raining cats and dogs.", schema)])
    assert isinstance(result, Result)
    shape = result.to_dict()
    assert shape["json"]["b"] in (True, False)
    assert {c["choice"] for c in shape["field_telemetry"]["b"]["top_choices"]} == {True, False}
    assert shape["provenance"]["prior"] is False


def test_codes_are_read_by_their_descriptions(engine: Engine) -> None:
    """Values that mean nothing to a model are told apart by what they stand for."""
    codes = {"870323": "motor cars", "090220": "green tea", "640399": "leather shoes", "220421": "red wine"}
    schema = StructuredSchema({"hs": {"type": "enum", "description": "What are the goods?", "choices": codes}})
    texts = {"870323": "one used motor car", "090220": "tea, green, loose", "220421": "bottles of wine, red"}
    outcomes = engine.run([Request(text, schema) for text in texts.values()])
    assert [o.json["hs"] for o in outcomes if isinstance(o, Result)] == list(texts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_context_that_is_too_long_fails_alone_and_names_the_counts(engine: Engine, layout: Layout) -> None:
    schema = StructuredSchema({"f": {"type": "enum", "choices": ["a", "b"]}})
    long = "word " * (engine.info.context_limit + 100)
    outcomes = engine.run([Request(long, schema, Options(layout=layout)), Request("short", schema)])
    assert isinstance(outcomes[0], ContextTooLong)
    assert isinstance(outcomes[1], Result)
    count = len(engine.tokenizer.text(long.strip()))
    assert outcomes[0].context_tokens == count
    assert str(count) in str(outcomes[0])
    assert str(engine.info.context_limit) in str(outcomes[0])


@pytest.mark.parametrize("keep", ["head", "tail"])
def test_a_context_can_be_truncated_to_fit(engine: Engine, keep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.prompts, "context_limit", 400)
    schema = StructuredSchema({"f": {"type": "enum", "description": "Which end?", "choices": ["start", "end"]}})
    context = "start " * 2000 + "end " * 2000
    [result] = engine.run([Request(context, schema, Options(truncate=keep, prior=False))])  # type: ignore[arg-type]
    assert isinstance(result, Result)
    assert 350 < result.usage.input_tokens <= 400 + 10
    prompt = engine.prompts.build(Request(context, schema, Options(truncate=keep)))  # type: ignore[arg-type]
    read = engine.tokenizer.decode([t for part in prompt.trunk for t in part])
    assert ("start start" in read, "end end" in read) == (keep == "head", keep == "tail")


@pytest.mark.parametrize("context", ["", "   \n", "half \ud800 pair"])
def test_a_context_without_text_is_refused(engine: Engine, context: str) -> None:
    schema = StructuredSchema({"f": {"type": "boolean"}})
    [outcome] = engine.run([Request(context, schema)])
    assert isinstance(outcome, InvalidContext)
