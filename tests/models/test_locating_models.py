"""FIELDCAST_MODEL may be a folder or a hub id; what cannot be had gives ModelUnavailable with what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from model_processes import run_python

from engine import models
from engine.errors import ModelUnavailable
from engine.models import LoadedModel
from engine.platform import BUILTIN_MODEL

LOCATE = """
import sys, pathlib
from engine.errors import ModelUnavailable
from engine.models.locate import locate
try:
    found = locate(sys.argv[1], pathlib.Path("/nowhere"), lambda _: None)
    print(found.name, found.path)
except ModelUnavailable as e:
    print("unavailable:", e)
"""


def test_a_local_folder_loads_under_its_own_name(smollm2: LoadedModel, tmp_path: Path) -> None:
    copied = tmp_path / "copied-model"
    shutil.copytree(smollm2.path, copied)
    loaded = models.load(str(copied), tmp_path / "data")
    assert loaded.name == "copied-model"
    assert loaded.path == copied
    assert loaded.tokenizer.encode("one text") == smollm2.tokenizer.encode("one text")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["no-such-model", "", "a/b/c", "/no/such/folder", "./no-such-folder"])
def test_an_unknown_name_says_what_a_model_may_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        models.load(name, tmp_path)
    assert BUILTIN_MODEL in str(caught.value)
    assert "FIELDCAST_MODEL" in str(caught.value)


def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no config\.json and no model"):
        models.load(str(tmp_path), tmp_path)


def test_a_file_is_no_model_folder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match="is a file"):
        models.load(str(tmp_path / "model.gguf"), tmp_path)


def test_truncated_weights_are_unavailable_not_a_crash(smollm2: LoadedModel, tmp_path: Path) -> None:
    folder = tmp_path / "truncated"
    shutil.copytree(smollm2.path, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        models.load(str(folder), tmp_path)


def test_a_hub_id_is_refused_in_words_when_offline(tmp_path: Path) -> None:
    done = run_python(LOCATE, "some-owner/some-model", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert done.stdout.startswith("unavailable: model some-owner/some-model is not in the local cache"), done.stderr
    assert "HF_HUB_OFFLINE is set" in done.stdout
    assert BUILTIN_MODEL in done.stdout


def test_a_hub_model_in_the_local_cache_needs_no_network(smollm2: LoadedModel, tmp_path: Path) -> None:
    cached = tmp_path / "hub" / "models--some-owner--some-model"
    snapshot = cached / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(smollm2.path, snapshot)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    done = run_python(LOCATE, "some-owner/some-model", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert done.stdout.split() == ["some-owner/some-model", str(snapshot)], done.stderr
