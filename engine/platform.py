"""What differs between an Apple Silicon Mac and other machines, for the model side. Does not import mlx."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

BUILTIN_MODEL = "smollm2-135m"
APPLE_SILICON_MODEL = "mlx-community/Qwen2.5-1.5B-Instruct-4bit"

# Fedora's threaded build first: its plain libopenblas runs on one core. Debian's runs on all.
OPENBLAS_NAMES = ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so")

_openblas: ctypes.CDLL | None = None


def is_apple_silicon() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def default_model() -> str:
    return APPLE_SILICON_MODEL if is_apple_silicon() else BUILTIN_MODEL


def default_data_dir() -> Path:
    """The user's cache folder: ~/Library/Caches/fieldcast on macOS, else $XDG_CACHE_HOME or ~/.cache."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fieldcast"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fieldcast"


def preload_blas() -> str:
    """Load OpenBLAS so that MLX's CPU products use it; call before the first `import mlx.core`. May be called again.

    MLX's Linux wheel brings a reference BLAS, some twenty times slower. Symbols that are global when mlx is loaded come
    before its own. Returns the BLAS that mlx uses: "accelerate" (macOS), "openblas", or "reference" (none was found,
    or mlx was imported first).
    """
    global _openblas
    if sys.platform == "darwin":
        return "accelerate"
    if _openblas is None and "mlx.core" not in sys.modules:
        _openblas = _load_openblas()
    return "openblas" if _openblas is not None else "reference"


def blas_threads() -> int | None:
    """How many threads the preloaded OpenBLAS uses (OPENBLAS_NUM_THREADS sets it); None without one."""
    return int(_openblas.openblas_get_num_threads()) if _openblas is not None else None


def _load_openblas() -> ctypes.CDLL | None:
    for name in OPENBLAS_NAMES:
        try:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if hasattr(library, "cblas_sgemm"):
            return library
    return None
