"""What a schema accepts and how it refuses the rest."""

from __future__ import annotations

from typing import Any

import pytest

from engine import FieldDefinition, SchemaError, StructuredSchema


def refusal(definition: Any) -> str:
    with pytest.raises(SchemaError) as caught:
        StructuredSchema(definition)
    return str(caught.value)


ENUM = {"type": "enum", "choices": ["a", "b"]}


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"type": "enum", "choices": ["a"]}, "choices: has 1 values; 2 to 255"),
        ({"type": "enum", "choices": [str(i) for i in range(256)]}, "choices: has 256 values"),
        ({"type": "enum", "choices": ["a", ""]}, "choices.1: is empty"),
        ({"type": "enum", "choices": ["a", "  "]}, "choices.1: is empty"),
        ({"type": "enum", "choices": ["a", "a"]}, "appears twice"),
        ({"type": "enum", "choices": ["é", "e\u0301"]}, "appears twice (after Unicode NFC)"),
        ({"type": "enum", "choices": ["a", "x" * 513]}, "choices.1: has 513 characters"),
        ({"type": "enum", "choices": ["a", 7]}, "choices.1: must be a string, not int"),
        ({"type": "enum", "choices": ["a", "\ud800"]}, "choices.1: is not valid Unicode"),
        ({"type": "enum", "choices": "ab"}, "choices: must be a list of strings"),
        ({"type": "enum"}, "choices: is missing"),
        ({"type": "enum", "choices": {"a": "x", "b": 3}}, "choices.b: the description must be a string"),
        ({"type": "score", "levels": ["low"]}, "levels: has 1 values"),
        ({"type": "score", "choices": ["low", "high"]}, "choices: unknown key"),
        ({"type": "score", "levels": {"low": "x", "high": "y"}}, "levels: must be a list of strings, lowest first"),
        *(
            ({"type": "boolean", "choices": choices}, "choices: a boolean takes no choices but true and false")
            for choices in (["yes", "no"], [True], [True, True], [1, 0], [True, ""], {"true": "so"}, "", None, 3)
        ),
        ({"type": "date"}, "'date' is unknown"),
        ({"type": "string"}, "'string' is open-ended"),
        ({"type": "number"}, "'number' is open-ended"),
        ({}, "type: is missing"),
        ({**ENUM, "default": "a"}, "default: unknown key"),
        ({**ENUM, "description": 3}, "description: must be a string"),
        ("enum", "must be an object with a type"),
    ],
)
def test_a_field_that_breaks_a_rule_is_named_with_the_rule(field: Any, words: str) -> None:
    assert words in refusal({"f": field})
    assert refusal({"f": field}).startswith("f")


def test_all_problems_of_a_schema_are_reported_at_once() -> None:
    with pytest.raises(SchemaError) as caught:
        StructuredSchema({"a": {"type": "enum", "choices": ["x"]}, "ok": ENUM, "b\n": ENUM, "": ENUM})
    assert [problem.loc[0] for problem in caught.value.problems] == ["a", "b\n", ""]


def test_the_number_of_fields_is_bounded() -> None:
    assert refusal({}) == "schema: has no fields"
    assert "401 fields; at most 400" in refusal({f"f{i}": ENUM for i in range(401)})
    assert len(StructuredSchema({f"f{i}": ENUM for i in range(400)})) == 400


def test_limits_themselves_are_allowed() -> None:
    schema = StructuredSchema({"f": {"type": "enum", "choices": [f"{i}" + "x" * 509 for i in range(100, 355)]}})
    assert len(schema["f"].values) == 255


def test_the_dict_form_survives_a_round_trip_and_keeps_its_id() -> None:
    definition = {
        "priority": {"type": "enum", "description": "How urgent", "choices": ["P0", "P1"]},
        "product": {"type": "enum", "choices": {"app": "The phone app", "web": "The web site"}},
        "angry": {"type": "boolean"},
        "severity": {"type": "score", "levels": ["none", "minor", "major"]},
    }
    schema = StructuredSchema(definition)
    again = StructuredSchema(schema.to_dict())
    assert schema.to_dict() == definition
    assert again == schema
    assert again.schema_id == schema.schema_id
    assert schema.schema_id.startswith("sch_")
    assert StructuredSchema(dict(reversed(definition.items()))).schema_id != schema.schema_id


@pytest.mark.parametrize("choices", [[], [True, False], [False, True]])
def test_a_boolean_may_name_its_two_values(choices: list[bool]) -> None:
    schema = StructuredSchema({"angry": {"type": "boolean", "choices": choices}})
    assert schema == StructuredSchema({"angry": {"type": "boolean"}})
    assert schema["angry"].values == (True, False)


def test_field_definitions_are_accepted_as_the_source_system_documents() -> None:
    field = FieldDefinition(name="hs", field_type="enum", description="Code", choices=["1", "2"])
    assert StructuredSchema({"hs": field})["hs"].values == ("1", "2")
    assert "holds a FieldDefinition named 'hs'" in refusal({"other": field})
    with pytest.raises(SchemaError, match="a boolean takes no choices"):
        FieldDefinition(name="b", field_type="boolean", choices=["yes", "no"])
