"""Loads an mlx-lm folder in the form that runs best on this device. Imports mlx."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
from mlx.nn.layers.base import Module

from engine.errors import ModelUnavailable, ModelUnsupported

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def load_folder(path: Path) -> tuple[Module, PreTrainedTokenizerFast]:
    """The module, its weights in memory, and the plain fast tokenizer.

    Raises ModelUnavailable for files that cannot be read, ModelUnsupported for a kind mlx-lm cannot run.
    """
    from mlx_lm.utils import load as mlx_lm_load

    try:
        # Lazy, so that on the CPU the stored form and the float32 form are never in memory together as a whole.
        loaded = mlx_lm_load(str(path), lazy=True)
        module, wrapper = loaded[0], loaded[1]
        if mx.default_device().type == mx.DeviceType.cpu:
            to_float32(module)
        mx.eval(module.parameters())
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise ModelUnsupported(f"mlx-lm cannot load the model in {path}: {e}") from e
    except (OSError, RuntimeError) as e:
        raise ModelUnavailable(f"the model's files in {path} cannot be read: {e}; fetch them again") from e
    tokenizer = wrapper._tokenizer
    if not tokenizer.is_fast:
        raise ModelUnsupported(f"the model in {path} has no fast tokenizer (tokenizer.json)")
    return module, tokenizer


def to_float32(module: Module) -> None:
    """Make every weight float32, in place. Scales first: products in their half precision would be rounded."""
    from mlx_lm.utils import dequantize_model

    module.set_dtype(mx.float32)
    dequantize_model(module)
    module.set_dtype(mx.float32)  # formats without float scales (mxfp4) come out in half precision
