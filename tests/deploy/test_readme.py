"""What the README tells people to type works as it is written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT
from typer.main import get_command

from deploy.cli import app
from engine import StructuredSchema
from worker.settings import Settings

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_python_example_prints_what_is_shown(environment: dict[str, str], data_dir: Path) -> None:
    [program] = blocks("python")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    [shown] = [block for block in blocks("") if block.startswith("{")]
    assert done.stdout == shown


def test_the_curl_example_asks_what_the_answer_shown_answers() -> None:
    [command] = [block for block in blocks("sh") if "-d '" in block]
    body = json.loads(re.search(r"-d '(.*)'", command, re.DOTALL)[1])  # type: ignore[index]
    schema = StructuredSchema(body["schema"])
    [shown] = [json.loads(block) for block in blocks("json")]
    assert shown["status"] == "completed"
    answers = shown["result"]["parsed_json"]
    assert list(answers) == list(schema)
    assert all(answers[name]["value"] in field.values for name, field in schema.items())


@pytest.mark.parametrize("command", sorted(set(re.findall(r"(?:^|`)fieldcast ([a-z]+(?: pull)?)\b", README, re.M))))
def test_each_command_exists(command: str) -> None:
    found = get_command(app)
    for word in command.split():
        assert word in found.commands, command  # type: ignore[attr-defined]
        found = found.commands[word]  # type: ignore[attr-defined]


def test_each_setting_and_folder_exists() -> None:
    for setting in re.findall(r"FIELDCAST_([A-Z_]+)", README):
        assert setting.lower() in Settings.model_fields
    for folder in re.findall(r"`((?:api|worker|engine|presets|deploy|tests)/[a-z/]*)`", README):
        assert (ROOT / folder).is_dir(), folder


def test_each_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z]+)\b", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
