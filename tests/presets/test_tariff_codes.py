"""The preset of 255 tariff codes: the shared list's codes, described in our own words."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import presets

SOURCE = Path(__file__).parents[3] / "shared" / "data" / "hs_tariff_255.preset.json"


@pytest.fixture(scope="module")
def described() -> dict[str, str]:
    field = presets.load("high_cardinality_255").schema["hs6"]
    return dict(zip(map(str, field.values), field.choice_descriptions, strict=True))


@pytest.fixture(scope="module")
def source() -> list[dict[str, Any]]:
    if not SOURCE.exists():
        pytest.skip(f"the shared list of tariff codes is not here ({SOURCE})")
    codes: list[dict[str, Any]] = json.loads(SOURCE.read_text(encoding="utf-8"))["codes"]
    return codes


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def test_there_are_255_six_digit_codes(described: dict[str, str]) -> None:
    assert len(described) == 255
    assert all(re.fullmatch(r"\d{6}", code) for code in described)


def test_every_description_is_2_to_5_words(described: dict[str, str]) -> None:
    assert {code: text for code, text in described.items() if not 2 <= len(text.split()) <= 5} == {}


def test_no_two_descriptions_are_the_same_words(described: dict[str, str]) -> None:
    assert len({plain(text) for text in described.values()}) == len(described)


def test_no_description_begins_another(described: dict[str, str]) -> None:
    texts = sorted(map(plain, described.values()))
    assert [(a, b) for a, b in pairwise(texts) if b.startswith(a + " ")] == []


def test_the_codes_are_those_of_the_shared_list_in_its_order(
    described: dict[str, str], source: list[dict[str, Any]]
) -> None:
    assert list(described) == [entry["code"] for entry in source]


def test_no_description_is_taken_from_the_source(described: dict[str, str], source: list[dict[str, Any]]) -> None:
    keys = ("description", "heading_description", "chapter_description")
    theirs = [plain(entry[key]) for entry in source for key in keys]
    copied = {code: text for code, text in described.items() if any(plain(text) in sentence for sentence in theirs)}
    assert copied == {}
