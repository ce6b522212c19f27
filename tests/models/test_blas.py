"""OpenBLAS is loaded before mlx where there is one, and the engine says truly which BLAS it uses."""

from __future__ import annotations

import ctypes.util
import sys

import pytest
from model_processes import run_python

linux = pytest.mark.skipif(sys.platform != "linux", reason="only MLX's Linux build brings a reference BLAS")
with_openblas = pytest.mark.skipif(ctypes.util.find_library("openblas") is None, reason="no OpenBLAS on this machine")

# dladdr tells which file a symbol comes from, for the lookup order that libmlx is bound by.
WHO_MULTIPLIES = """
import ctypes
from engine.platform import preload_blas, blas_threads
print(preload_blas())
import mlx.core as mx
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p)]
    _fields_ += [("name", ctypes.c_char_p), ("at", ctypes.c_void_p)]
info, process = Info(), ctypes.CDLL(None)
process.dladdr(ctypes.cast(process.cblas_sgemm, ctypes.c_void_p), ctypes.byref(info))
print(info.file.decode())
print(blas_threads())
print(mx.matmul(mx.ones((64, 64)), mx.ones((64, 64))).sum().item())
"""


@linux
@with_openblas
def test_openblas_multiplies_where_there_is_one() -> None:
    done = run_python(WHO_MULTIPLIES)
    blas, file, threads, total = done.stdout.split()
    assert blas == "openblas", done.stderr
    assert "openblas" in file
    assert int(threads) >= 1
    assert float(total) == 64**3


@linux
@with_openblas
def test_openblas_threads_can_be_set() -> None:
    assert run_python(WHO_MULTIPLIES, OPENBLAS_NUM_THREADS="1").stdout.split()[2] == "1"


@linux
def test_it_is_the_reference_when_mlx_was_there_first() -> None:
    code = "import mlx.core; from engine.platform import preload_blas as p, blas_threads as t; print(p(), p(), t())"
    assert run_python(code).stdout.split() == ["reference", "reference", "None"]


def test_each_platform_has_its_own() -> None:
    done = run_python("from engine.platform import preload_blas; print(preload_blas())")
    assert done.stdout.strip() in ({"accelerate"} if sys.platform == "darwin" else {"openblas", "reference"})
