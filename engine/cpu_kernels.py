"""Faster functions for MLX's CPU backend, put in place of mlx-lm's from outside. Never used on a GPU.

MLX's CPU `exp` and `sigmoid` cost 12 to 16 ns an element and dominate a forward pass there; an exp2 made of plain
operations, compiled, costs about a tenth. Attention is done for blocks of rows against only those keys that some row of
the block may attend to, so that a wide tree costs in proportion to its tokens, not to their square.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
import mlx_lm.models.activations
import mlx_lm.models.base
import numpy as np

from engine.tree import Ints, Mask

LOG2E = 1.4426950408889634
BLOCK_ROWS = 128
MASKED = -1e30
CACHED_ROWS = 16  # of logits: temporaries of more leave the processor's cache

_mlx_lm_attention = mlx_lm.models.base.scaled_dot_product_attention
_mlx_lm_swiglu = mlx_lm.models.activations.swiglu


@dataclass(frozen=True)
class AttentionBlock:
    """Rows `start` to `stop` of a pass, the keys that any of them attends to, and 0 or MASKED for each pair."""

    start: int
    stop: int
    keys: mx.array | None  # indices; None: all
    mask: mx.array  # (rows, keys) float32


def attention_blocks(mask: Mask) -> list[AttentionBlock]:
    """Cut a pass's mask (rows, keys) into blocks."""
    blocks = []
    for start in range(0, len(mask), BLOCK_ROWS):
        part = mask[start : start + BLOCK_ROWS]
        keys = np.flatnonzero(part.any(axis=0))
        additive = np.where(part[:, keys], np.float32(0), np.float32(MASKED))
        index = None if len(keys) == mask.shape[1] else mx.array(keys)
        blocks.append(AttentionBlock(start, start + len(part), index, mx.array(additive)))
    return blocks


def install() -> None:
    """Put these functions in the place of mlx-lm's in every model module that is loaded by now."""
    replacements = {_mlx_lm_attention: scaled_dot_product_attention, _mlx_lm_swiglu: swiglu}
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models."):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, Callable) and value in replacements:  # type: ignore[arg-type]
                    setattr(module, attribute, replacements[value])


def scaled_dot_product_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """As mlx-lm's: queries (batch, heads, rows, dim), keys and values (batch, kv heads, keys, dim)."""
    rows, count = queries.shape[2], keys.shape[2]
    plain = queries.dtype == mx.float32 and queries.shape[0] == 1 and sinks is None and not hasattr(cache, "bits")
    blocks = getattr(cache, "blocks", None)
    if plain and blocks and mask is cache.mask:
        return _blocked(queries, keys, values, scale, blocks)
    if plain and isinstance(mask, str) and mask == "causal" and rows > 1:
        return _blocked(queries, keys, values, scale, _causal_blocks(rows, count))
    return _mlx_lm_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x."""
    return _fast_swiglu(gate, x) if gate.dtype == mx.float32 else _mlx_lm_swiglu(gate, x)


def logsumexp(logits: mx.array) -> mx.array:
    """(rows,) of logits (rows, vocabulary) in float32, as `mx.logsumexp` over the last axis."""
    parts = []
    for start in range(0, len(logits), CACHED_ROWS):
        part = logits[start : start + CACHED_ROWS]
        largest = part.max(axis=-1, keepdims=True)
        weights = _fast_exp2(mx.maximum((part - largest) * LOG2E, -126.0))
        parts.append(largest[:, 0] + mx.log(weights.sum(axis=-1)))
    return mx.concatenate(parts)


def _blocked(q: mx.array, k: mx.array, v: mx.array, scale: float, blocks: list[AttentionBlock]) -> mx.array:
    _, heads, rows, dim = q.shape
    kv_heads = k.shape[1]
    grouped = (q[0] * (scale * LOG2E)).reshape(kv_heads, heads // kv_heads, rows, dim)
    parts = []
    for block in blocks:
        bk, bv = (k[0], v[0]) if block.keys is None else (k[0][:, block.keys], v[0][:, block.keys])
        parts.append(_attend(grouped[:, :, block.start : block.stop], bk, bv, block.mask))
    return mx.concatenate(parts, axis=2).reshape(1, heads, rows, v.shape[-1])


def _attend(q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> mx.array:
    """q (kv heads, group, rows, dim), scaled for exp2; k, v (kv heads, keys, dim)."""
    heads, group, rows, dim = q.shape
    scores = q.reshape(heads, group * rows, dim) @ k.swapaxes(-1, -2)
    scores = scores.reshape(heads, group, rows, -1) + mask
    weights = _numerator(scores, scores.max(axis=-1, keepdims=True)).reshape(heads, group * rows, -1)
    return ((weights @ v) / weights.sum(axis=-1, keepdims=True)).reshape(heads, group, rows, -1)


@cache
def _causal_blocks(rows: int, keys: int) -> list[AttentionBlock]:
    """Blocks of ordinary causal attention of the last `rows` of `keys` positions."""
    blocks = []
    before = keys - rows
    for start in range(0, rows, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, rows)
        reach: Ints = np.arange(start, stop)[:, None] + before
        additive = np.where(np.arange(before + stop) <= reach, np.float32(0), np.float32(MASKED))
        index = None if before + stop == keys else mx.arange(before + stop)
        blocks.append(AttentionBlock(start, stop, index, mx.array(additive)))
    return blocks


def _exp2(x: mx.array) -> mx.array:
    """2**x for x in [-126, 126], relative error 2.4e-7: round to an integer, a degree-5 polynomial on the rest, and
    the integer put into the exponent bits."""
    rounded = (x + 12582912.0) - 12582912.0
    f = x - rounded
    p = 0.001340043217 * f + 0.009676037098
    for coefficient in (0.05550327214, 0.2402210736, 0.6931472067, 1.000000075):
        p = p * f + coefficient
    scale = mx.left_shift(rounded.astype(mx.int32) + 127, mx.array(23, mx.int32)).view(mx.float32)
    return p * scale


_fast_exp2 = mx.compile(_exp2)


@mx.compile
def _fast_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return gate * x / (1.0 + _exp2(mx.clip(gate * -LOG2E, -126.0, 126.0)))


@mx.compile
def _numerator(scores: mx.array, row_max: mx.array) -> mx.array:
    return _exp2(mx.maximum(scores - row_max, -126.0))
