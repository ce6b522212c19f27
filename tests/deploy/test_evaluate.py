"""`fieldcast evaluate` on the real model: records of our own, and the labelled dev sets where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import ROOT, Command

SCHEMA = {
    "language": {"type": "enum", "choices": ["English", "German"], "description": "Language of the text"},
    "urgent": {"type": "boolean", "description": "Is it urgent?"},
}
RECORDS = [
    {"context": "Please send me the invoice of last month.", "labels": {"language": "English", "urgent": False}},
    {"context": "Bitte schicken Sie mir die Rechnung vom letzten Monat.", "labels": {"language": "German"}},
    {"context": "The server burns, call me right now!", "labels": {"language": "English", "urgent": True, "other": 1}},
]
SHARED_DATA = ROOT.parent / "shared" / "data"
# Dev set, its field, and the share that must be right: findings' best column less 0.05, and on 40 records three
# standard errors less than that.
BARS = [("snips", "intent", 0.53), ("rustsec_kind", "kind", 0.66)]
SUBSET = 40


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


def written(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_figures_of_a_few_records(fieldcast: Command, data_dir: Path, tmp_path: Path, schema: str) -> None:
    data = written(tmp_path / "data.jsonl", [json.dumps(record) for record in RECORDS])
    done = fieldcast("evaluate", "--schema", schema, "--data", data, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert [(f["field"], f["records"]) for f in figures["fields"]] == [("language", 3), ("urgent", 2)]
    assert figures["fields"][0]["accuracy"] == 1
    assert all(0 <= f["ece"] <= 1 and f["log_loss"] > 0 for f in figures["fields"])
    printed = fieldcast("evaluate", "--schema", schema, "--data", data, "--limit", "1")
    assert "accuracy" in printed.stdout
    assert "1 records" in printed.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", "line 1: not an object"),
        ('{"context": "a"}', "line 1: not an object"),
        ('{"context": 1, "labels": {"urgent": true}}', "line 1: not an object"),
        ('{"context": "a\u2028b", "labels": {"urgent": 1}}', "1 is not a value of urgent"),  # one line of JSON
        ('{"context": "a", "labels": {"language": "Klingon"}}', "'Klingon' is not a value of language"),
        ('{"context": "a", "labels": {"urgent": 1}}', "1 is not a value of urgent"),
        ('{"context": "a", "labels": {"other": 1}}', "no record with a label"),
    ],
)
def test_bad_records_are_bad_usage(fieldcast: Command, tmp_path: Path, schema: str, line: str, words: str) -> None:
    done = fieldcast("evaluate", "--schema", schema, "--data", written(tmp_path / "data.jsonl", [line]))
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the labelled dev sets are not here")
@pytest.mark.parametrize(("name", "field", "bar"), BARS)
def test_the_dev_sets_are_answered_well(fieldcast: Command, data_dir: Path, name: str, field: str, bar: float) -> None:
    files = ("--schema", f"{SHARED_DATA / name}.schema.json", "--data", f"{SHARED_DATA / name}.dev.jsonl")
    done = fieldcast("evaluate", *files, "--limit", str(SUBSET), "--json")
    assert done.returncode == 0, done.stderr
    [figures] = [f for f in json.loads(done.stdout)["fields"] if f["field"] == field]
    assert figures["accuracy"] >= bar - 3 * (bar * (1 - bar) / SUBSET) ** 0.5
