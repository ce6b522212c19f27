"""What differs between an Apple Silicon Mac and other machines, for the model side. Does not import mlx."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

BUILTIN_MODEL = "smollm2-135m"
APPLE_SILICON_MODEL = "mlx-community/Qwen2.5-1.5B-Instruct-4bit"


def is_apple_silicon() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def default_model() -> str:
    return APPLE_SILICON_MODEL if is_apple_silicon() else BUILTIN_MODEL


def default_data_dir() -> Path:
    """The user's cache folder: ~/Library/Caches/fieldcast on macOS, else $XDG_CACHE_HOME or ~/.cache."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fieldcast"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fieldcast"
