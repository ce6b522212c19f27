"""What holds for every preset: it loads, it has the fields it promises, its samples are usable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import presets
from engine.errors import FieldcastError
from engine.schema import StructuredSchema

FIELDS = {"code_security": 4, "fintech_fraud": 4, "high_cardinality_255": 1, "support_triage": 28}
FILES = sorted(Path(presets.__file__).parent.glob("*.json"))


def test_the_four_presets_are_listed_in_alphabetical_order() -> None:
    assert presets.names() == sorted(FIELDS)


def test_changing_the_list_of_names_does_not_change_the_presets() -> None:
    presets.names().clear()
    assert presets.names() == sorted(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_preset_has_its_number_of_fields(name: str) -> None:
    preset = presets.load(name)
    assert preset.name == name
    assert preset.version >= 1
    assert len(preset.schema) == FIELDS[name]


@pytest.mark.parametrize("name", FIELDS)
def test_a_preset_says_what_it_is(name: str) -> None:
    preset = presets.load(name)
    assert preset.title.strip()
    assert preset.description.strip()
    for field in preset.schema.fields:
        assert field.description.endswith("?"), f"{field.name} asks no question"
        assert len(field.description.split()) <= 15, f"{field.name}: a long question costs tokens in every request"


@pytest.mark.parametrize("name", FIELDS)
def test_a_preset_has_at_least_three_different_samples_of_60_to_200_words(name: str) -> None:
    samples = presets.load(name).samples
    assert len(set(samples)) == len(samples) >= 3
    for sample in samples:
        assert 60 <= len(sample.split()) <= 200


@pytest.mark.parametrize("name", FIELDS)
def test_no_two_values_of_a_field_differ_only_in_case(name: str) -> None:
    for field in presets.load(name).schema.fields:
        assert len({str(value).casefold() for value in field.values}) == len(field.values)


def test_support_triage_mixes_all_three_types_of_field() -> None:
    types = [field.field_type for field in presets.load("support_triage").schema.fields]
    assert set(types) == {"enum", "boolean", "score"}


@pytest.mark.parametrize("name", FIELDS)
def test_a_preset_written_out_is_what_its_file_holds(name: str) -> None:
    (path,) = (path for path in FILES if path.stem == name)
    assert presets.load(name).to_dict() == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_utf_8_json_whose_schema_reads_back_as_itself(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", errors="strict")
    assert not text.startswith("\ufeff")
    data = json.loads(text)
    assert data["name"] == path.stem
    schema = StructuredSchema(data["schema"])
    assert StructuredSchema(schema.to_dict()) == schema


@pytest.mark.parametrize(
    "name", ["", "Support_Triage", "support_triage.json", "../presets/support_triage", "custom", "\x00"]
)
def test_an_unknown_name_is_refused_and_told_the_known_ones(name: str) -> None:
    with pytest.raises(presets.UnknownPreset, match="support_triage") as caught:
        presets.load(name)
    assert isinstance(caught.value, FieldcastError)
    assert caught.value.type == "unknown_preset"
    assert caught.value.name == name
