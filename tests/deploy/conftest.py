"""The command as a child process, in a data folder of its own that shares the converted model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, Command

from engine.models.builtin import ensure
from engine.platform import BUILTIN_MODEL, default_data_dir

COMMAND_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """Where the built-in model is converted for the user who runs the tests: once, not once a test."""
    return ensure(BUILTIN_MODEL, default_data_dir()).parent


@pytest.fixture
def data_dir(tmp_path: Path, model_folder: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "models").symlink_to(model_folder)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """None of the caller's settings; a data folder without a model."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("FIELDCAST_")}
    return {
        **outside,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        "FIELDCAST_DATA_DIR": str(tmp_path / "data"),
        "FIELDCAST_MODEL": BUILTIN_MODEL,
    }


@pytest.fixture
def fieldcast(environment: dict[str, str]) -> Command:
    """Runs `fieldcast ARGUMENTS` to its end. `stdin` is its input; other keywords are settings (`host="..."`)."""

    def run(*arguments: str, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "deploy.cli", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            env={**environment, **{f"FIELDCAST_{name.upper()}": value for name, value in settings.items()}},
        )

    return run
