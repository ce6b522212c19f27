"""What the engine asks of MLX's device and of a loaded model's sizes. Importing it loads OpenBLAS where there is one,
then mlx, in that order."""

from __future__ import annotations

import re
from typing import Any, cast

from engine.platform import preload_blas

BLAS = preload_blas()

import mlx.core as mx  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402

CACHE_SHARE = 0.25  # of the device's recommended working set, for cached prefixes
CPU_CACHE_BYTES = 1 * 2**30
DEFAULT_CONTEXT_LIMIT = 4096  # tokens, for a model that does not say

# What MLX's RuntimeErrors say when memory is used up: allocators ("Unable to allocate"), Metal's command buffers
# ("Insufficient Memory") and CUDA ("out of memory"). On the CPU a failed allocation ends the process instead.
_OUT_OF_MEMORY = re.compile(r"allocat|(out of|insufficient) memory", re.IGNORECASE)


def on_cpu() -> bool:
    return mx.default_device() != mx.Device(mx.gpu)


def name() -> str:
    """`gpu` (with its name) or `cpu`."""
    return "cpu" if on_cpu() else f"gpu ({mx.device_info().get('device_name', 'unknown')})"


def default_cache_bytes() -> int:
    if on_cpu():
        return CPU_CACHE_BYTES
    working_set = mx.device_info().get("max_recommended_working_set_size", 4 * CPU_CACHE_BYTES)
    return int(CACHE_SHARE * int(working_set))


def memory() -> dict[str, int]:
    return {"active": mx.get_active_memory(), "cache": mx.get_cache_memory(), "peak": mx.get_peak_memory()}


def clear_cache() -> None:
    """Give back the freed memory that MLX keeps for reuse."""
    mx.clear_cache()


def is_out_of_memory(error: Exception) -> bool:
    """Does this exception of a model call say that the device's memory is used up?"""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def context_limit(model: Any) -> int:
    """Most positions the model has, in tokens, from its configuration."""
    args = getattr(model, "args", None)
    text = getattr(args, "text_config", None)
    limit = getattr(args, "max_position_embeddings", None)
    if limit is None and isinstance(text, dict):
        limit = text.get("max_position_embeddings")
    return int(limit or DEFAULT_CONTEXT_LIMIT)


def parameters(model: Any) -> int:
    """Stored numbers, a packed quantised weight counted by its words."""
    return sum(array.size for array in _arrays(model))


def dtype(model: Any) -> str:
    """The type of most of the model's bytes, such as `float32`; `uint32` holds quantised weights."""
    sizes: dict[str, int] = {}
    for array in _arrays(model):
        kind = str(array.dtype).removeprefix("mlx.core.")
        sizes[kind] = sizes.get(kind, 0) + array.nbytes
    return max(sizes, key=lambda kind: sizes[kind])


def _arrays(model: Any) -> list[mx.array]:
    return [array for _, array in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))]
