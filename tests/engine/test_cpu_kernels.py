"""The CPU's replacement functions give what mlx-lm's give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine as engine_package
from engine import cpu_kernels
from engine.cpu_kernels import attention_blocks
from engine.platform import preload_blas

pytestmark = pytest.mark.skipif(
    mx.default_device() == mx.Device(mx.gpu), reason="these functions are used on MLX's CPU backend only"
)


class _Cache:
    def __init__(self, mask: np.ndarray) -> None:
        self.mask = mx.array(mask)
        self.blocks = attention_blocks(mask)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 300), above=st.integers(0, 200), group=st.sampled_from([1, 3]), seed=st.integers(0, 1000))
def test_blocked_attention_equals_dense_attention(rows: int, above: int, group: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((rows, above + rows)) < 0.2
    mask[np.arange(rows), above + np.arange(rows)] = True
    q, k, v = (
        mx.array(random.normal(size=(1, heads, length, 16), scale=3).astype(np.float32))
        for heads, length in ((2 * group, rows), (2, above + rows), (2, above + rows))
    )
    cache = _Cache(mask)
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=cache.mask)
    found = cpu_kernels.scaled_dot_product_attention(q, k, v, cache, 0.25, cache.mask)
    assert np.abs(np.array(found) - np.array(expected)).max() < 1e-4


@pytest.mark.parametrize(("rows", "keys"), [(2, 2), (128, 128), (200, 200), (130, 700)])
def test_causal_attention_equals_mlxs(rows: int, keys: int) -> None:
    random = np.random.default_rng(0)
    q, k, v = (
        mx.array(random.normal(size=(1, h, n, 32)).astype(np.float32)) for h, n in ((6, rows), (2, keys), (2, keys))
    )
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.2, mask="causal")
    found = cpu_kernels.scaled_dot_product_attention(q, k, v, None, 0.2, "causal")
    assert np.abs(np.array(found) - np.array(expected)).max() < 1e-5


def test_swiglu_equals_the_formula_over_its_whole_range() -> None:
    gate = mx.concatenate([mx.linspace(-200, 200, 4001), mx.array([-1e30, 1e30, 0.0])])
    x = mx.full(gate.shape, 2.0)
    expected = np.array(gate, np.float64) / (1 + np.exp(-np.clip(np.array(gate, np.float64), -700, 700))) * 2
    found = np.array(cpu_kernels.swiglu(gate, x), np.float64)
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()
    near = np.abs(np.array(gate)) < 50
    assert np.abs(found - expected)[near].max() < 1e-4


@pytest.mark.parametrize("scale", [0.1, 10, 1000])
def test_logsumexp_equals_the_formula(scale: float) -> None:
    logits = np.random.default_rng(0).normal(size=(40, 5000), scale=scale).astype(np.float32)
    logits[0, 0] = -np.inf
    expected = np.logaddexp.reduce(logits.astype(np.float64), axis=-1)
    found = np.array(cpu_kernels.logsumexp(mx.array(logits)), np.float64)
    assert np.abs(found - expected).max() <= 1e-6 * max(1, np.abs(expected).max())


def test_the_models_logits_stay_within_1e_4_of_unpatched_mlx_lm() -> None:
    """In processes of their own, because the functions are replaced for a whole process."""
    program = """
import sys
import numpy as np
from engine.platform import preload_blas
preload_blas()
import mlx.core as mx
from engine import models, settings
loaded = models.load("smollm2-135m", settings.ModelSettings().data_dir)
if sys.argv[1] == "patched":
    from engine import cpu_kernels
    cpu_kernels.install()
tokens = loaded.tokenizer.encode("A parcel that was sent on Monday has not arrived, and nobody answers. " * 12)
np.save(sys.argv[2], np.array(loaded.model(mx.array(tokens)[None])[0]))
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        logits = []
        for kind in ("plain", "patched"):
            path = f"{folder}/{kind}.npy"
            subprocess.run([sys.executable, "-c", program, kind, path], check=True)
            logits.append(np.load(path))
    assert np.abs(logits[0] - logits[1]).max() < 1e-4


PACKAGE = Path(engine_package.__file__).parent
MLX_MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if re.search("^(import|from) mlx", path.read_text(), re.MULTILINE)
)
# Says what engine.device has preloaded at the moment at which mlx.core is looked for.
WATCH = """
import importlib, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "mlx.core":
            print(getattr(sys.modules.get("engine.device"), "BLAS", "mlx came first"))
sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize("module", [*MLX_MODULES, "engine.generate", "engine.engine", "engine.benchmark"])
def test_whatever_is_imported_first_openblas_comes_before_mlx(module: str) -> None:
    """The library that is loaded first serves MLX's products: any other order makes them some twenty times slower."""
    found = subprocess.run([sys.executable, "-c", WATCH, module], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == str(preload_blas())
