"""`fieldcast run`: a document in, typed answers out, on the real model, without a server."""

from __future__ import annotations

import json
from pathlib import Path

from processes import Command

DOCUMENT = "The login page shows error 500 since noon and none of our 300 users can work. Please call us."
SCHEMA = {
    "urgent": {"type": "boolean", "description": "Is it urgent?"},
    "area": {"type": "enum", "choices": ["login", "billing"], "description": "Which part is it about?"},
}


def test_a_schema_file_and_a_document_from_standard_input(fieldcast: Command, data_dir: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    done = fieldcast("run", "--schema", str(schema), "--context", "-", "--json", stdin=DOCUMENT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["json"].keys() == SCHEMA.keys()
    assert isinstance(result["json"]["urgent"], bool)
    assert result["json"]["area"] in ("login", "billing")
    assert result["schema_match"]


def test_a_preset_and_a_document_from_a_file(fieldcast: Command, data_dir: Path, tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text(DOCUMENT)
    done = fieldcast("run", "--preset", "fintech_fraud", "--context", str(document))
    assert done.returncode == 0, done.stderr
    assert "risk_level" in done.stdout
    assert "1 forward pass" in done.stdout


def test_a_document_that_is_too_long_fails(fieldcast: Command, data_dir: Path) -> None:
    done = fieldcast("run", "--preset", "fintech_fraud", "--context", "-", stdin="one two three " * 5000)
    assert done.returncode == 1
    assert "tokens" in done.stderr
    assert done.stdout == ""
