"""The command's words: help, bad usage, exit codes, JSON. Nothing here loads a model."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, Command, mentioning

COMMANDS = (
    ["up"],
    ["api"],
    ["worker"],
    ["webhooks"],
    ["run"],
    ["evaluate"],
    ["config"],
    ["doctor"],
    ["models"],
    ["models", "pull"],
    ["presets"],
    ["presets", "show"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(fieldcast: Command, command: list[str]) -> None:
    done = fieldcast(*command, "--help")
    assert done.returncode == 0
    assert f"fieldcast {' '.join(command)}" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["up", "--nonsense"],
        ["up", "--port", "high"],
        ["up", "--port", "70000"],
        ["run"],
        ["run", "--preset", "support_triage", "--schema", "s.json"],
        ["run", "--preset", "nonsense"],
        ["run", "--schema", "not/there.json"],
        ["run", "--preset", "support_triage", "--context", "not/there.txt"],
        ["run", "--preset", "support_triage", "--context", "-"],  # empty input
        ["run", "--preset", "support_triage", "--context", "-", "--temperature", "0"],
        ["run", "--preset", "support_triage", "--context", "-", "--layout", "nonsense"],
        ["presets", "show"],
        ["presets", "show", "nonsense"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_code_2_and_says_why(fieldcast: Command, words: list[str]) -> None:
    done = fieldcast(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr or not words  # without words: the help


def test_a_setting_that_cannot_be_used_is_bad_usage_and_is_named(fieldcast: Command) -> None:
    done = fieldcast("config", pass_tokens="many")
    assert done.returncode == 2
    assert "FIELDCAST_PASS_TOKENS" in done.stderr


@pytest.mark.parametrize("command", ["up", "api", "worker", "webhooks", "doctor", "config"])
def test_a_redis_url_that_is_none_is_bad_usage_and_is_not_repeated(fieldcast: Command, command: str) -> None:
    done = fieldcast(command, redis_url="http://user:hunter2@example.org")
    assert done.returncode == 2
    assert "FIELDCAST_REDIS_URL" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "schema"),
        ('{"a": {"type": "enum", "choices": ["only one"]}}', "a"),
        ("[" * 100_000, "deep"),
        ("\xff", "not UTF-8"),
    ],
)
def test_a_schema_file_that_cannot_be_used_is_bad_usage(
    fieldcast: Command, tmp_path: Path, schema: str, complaint: str
) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(schema.encode("latin-1"))
    done = fieldcast("run", "--schema", str(path), "--context", "-", stdin="A document.")
    assert done.returncode == 2
    assert complaint in done.stderr
    assert str(path) in done.stderr


def test_a_data_folder_that_cannot_be_made_is_named(fieldcast: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "model").mkdir()
    for model in ("smollm2-135m", str(tmp_path / "model")):
        done = fieldcast(
            "up",
            "--port",
            "0",
            data_dir=str(tmp_path / "file" / "data"),
            model=model,
            worker_metrics_port="0",
            webhooks_metrics_port="0",
        )
        assert done.returncode == 1
        assert "FIELDCAST_DATA_DIR" in done.stderr
        assert "Traceback" not in done.stderr


def test_presets_as_json(fieldcast: Command) -> None:
    listed = json.loads(fieldcast("presets", "--json").stdout)
    assert {one["name"]: one["fields"] for one in listed}["support_triage"] == 28
    shown = json.loads(fieldcast("presets", "show", "support_triage", "--json").stdout)
    assert len(shown["schema"]) == 28
    assert len(shown["samples"]) >= 3


def test_presets_as_tables(fieldcast: Command) -> None:
    assert "high_cardinality_255" in fieldcast("presets").stdout
    assert "P0_CRITICAL" in fieldcast("presets", "show", "support_triage").stdout


def test_models_says_what_is_ready(fieldcast: Command, data_dir: Path) -> None:
    [builtin] = json.loads(fieldcast("models", "--json").stdout)
    assert builtin["ready"]
    assert builtin["in_use"]
    (data_dir / "models").unlink()
    [builtin] = json.loads(fieldcast("models", "--json").stdout)
    assert not builtin["ready"]


def test_pulling_a_model_that_is_there_tells_its_folder(fieldcast: Command, data_dir: Path) -> None:
    done = fieldcast("models", "pull", "--json")
    assert done.returncode == 0
    assert Path(json.loads(done.stdout)["path"]).is_dir()


def test_pulling_a_model_that_does_not_exist_fails(fieldcast: Command) -> None:
    done = fieldcast("models", "pull", "nonsense")
    assert done.returncode == 1
    assert "FIELDCAST_MODEL" in done.stderr


def test_config_tells_where_a_value_comes_from_and_hides_secrets(fieldcast: Command) -> None:
    secrets = {"redis_url": "redis://user:hunter2@example.org:6379/0", "webhook_secret": "whsec_aHVudGVyMg=="}
    done = fieldcast("config", "--json", port="8123", **secrets)
    settings = {one["name"]: one for one in json.loads(done.stdout)}
    assert settings["FIELDCAST_PORT"]["value"] == 8123
    assert settings["FIELDCAST_PORT"]["set"]
    assert not settings["FIELDCAST_HOST"]["set"]
    assert all(one["description"] for one in settings.values())
    for shown in (done.stdout, fieldcast("config", **secrets).stdout):
        assert "hunter2" not in shown
        assert "aHVudGVyMg" not in shown


@pytest.mark.parametrize("command", ["up", "api"])
def test_only_loopback_may_be_bound_without_keys(fieldcast: Command, data_dir: Path, command: str) -> None:
    done = fieldcast(command, host="0.0.0.0")
    assert done.returncode == 1
    assert "API keys" in done.stderr
    assert not mentioning(str(data_dir))


@pytest.mark.parametrize("command", ["up", "api"])
def test_a_port_in_use_is_named_and_nothing_is_started(fieldcast: Command, data_dir: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = fieldcast(command, "--port", port)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (data_dir / "valkey").exists()
    assert not mentioning(str(data_dir))


def test_the_supervisor_and_the_doctor_import_no_mlx() -> None:
    program = "import sys, deploy.cli, deploy.up, deploy.doctor, deploy.listing; sys.exit('mlx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
