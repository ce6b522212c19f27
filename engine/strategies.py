"""Chooses how trees are evaluated, by measurement: at load, packed and broadcast are compared with plain forwards.

The comparison is of the log-probabilities that a small tree's edges get from the strategy and from calling the
mlx-lm model on each whole path, without a cache and without anything of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
import numpy as np

from engine.broadcast import BroadcastStrategy
from engine.errors import ModelUnsupported
from engine.evaluation import Edges, Strategy
from engine.hooks import HookedModel
from engine.packed import PackedStrategy
from engine.prefix_cache import PrefixCache
from engine.prompt_tokenizer import PromptTokenizer
from engine.tree import TokenTree, pack
from engine.value_trie import Floats

TOLERANCE = {mx.float32: 1e-3, mx.float16: 0.1, mx.bfloat16: 0.5}  # nats, on log-probabilities
_TRUNKS = ("The parcel arrived on Monday, two days late, and the box was torn at one corner.", "Nothing to report.")
_BRANCHES = (" Question: was it late? Answer: yes", " Question: was it late? Answer: not at all", " The colour is blue")


@dataclass(frozen=True)
class StrategyCheck:
    """Largest differences, in nats of log-probability, from the model's own sequential forward; None: it raised.

    `packed_problem` and `broadcast_problem` say what was raised.
    """

    packed_error: float | None
    broadcast_error: float | None
    tolerance: float
    vocabulary: int
    packed_problem: str | None = None
    broadcast_problem: str | None = None


def choose(
    model: HookedModel,
    prefix_cache: PrefixCache,
    pass_tokens: int,
    tokenizer: PromptTokenizer,
    wanted: Literal["auto", "packed", "broadcast"] = "auto",
) -> tuple[Strategy, StrategyCheck]:
    """The strategy to use and the check's figures. Raises `ModelUnsupported` when none that is wanted agrees."""
    expected, dtype, vocabulary = _plain(model, tokenizer)
    tolerance = TOLERANCE.get(dtype, TOLERANCE[mx.bfloat16])
    packed = PackedStrategy(model, prefix_cache, pass_tokens)
    broadcast = BroadcastStrategy(model, pass_tokens)
    packed_error, packed_problem = _difference(packed, tokenizer, expected)
    broadcast_error, broadcast_problem = _difference(broadcast, tokenizer, expected)
    prefix_cache.clear()
    check = StrategyCheck(packed_error, broadcast_error, tolerance, vocabulary, packed_problem, broadcast_problem)
    candidates: list[tuple[Strategy, float | None]] = [(packed, packed_error), (broadcast, broadcast_error)]
    for strategy, error in candidates:
        if wanted in ("auto", strategy.name) and error is not None and error <= tolerance:
            return strategy, check
    raise ModelUnsupported(
        f"no {'strategy' if wanted == 'auto' else wanted + ' strategy'} agrees with the model's own forward within "
        f"{tolerance} nats: packed {packed_error if packed_problem is None else packed_problem}, "
        f"broadcast {broadcast_error if broadcast_problem is None else broadcast_problem}"
    )


def _paths(tokenizer: PromptTokenizer) -> list[tuple[list[int], list[int]]]:
    trunks = [tokenizer.text(text) for text in _TRUNKS]
    return [(trunk, tokenizer.text(branch)) for trunk in trunks for branch in _BRANCHES]


def _plain(model: HookedModel, tokenizer: PromptTokenizer) -> tuple[Floats, mx.Dtype, int]:
    """Log-probabilities of every branch token of every path, by plain calls; the logits' dtype and width."""
    found = []
    for trunk, branch in _paths(tokenizer):
        logits = model.model(mx.array(trunk + branch)[None])[0]
        dtype, vocabulary = logits.dtype, logits.shape[-1]
        logits = logits[len(trunk) : -1].astype(mx.float32)
        log_probabilities = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        found.append(np.array(log_probabilities[mx.arange(len(branch) - 1), mx.array(branch[1:])]))
    return np.concatenate(found).astype(np.float64), dtype, vocabulary


def _difference(strategy: Strategy, tokenizer: PromptTokenizer, expected: Floats) -> tuple[float | None, str | None]:
    tree = TokenTree()
    ends = [
        (tree.extend(tree.extend(tree.root, trunk, trunk=True), branch), branch) for trunk, branch in _paths(tokenizer)
    ]
    packed = pack(tree)
    rows = np.concatenate([end.rows(len(branch))[:-1] for end, branch in ends]).astype(np.int64)
    tokens = np.array([token for _, branch in ends for token in branch[1:]], np.int64)
    try:
        evaluation = strategy.evaluate(packed, {}, Edges(rows, tokens))
    except Exception as error:  # whatever a model's code raises when it does not follow mlx-lm's conventions
        return None, f"{type(error).__name__}: {error}"
    difference = float(np.abs(evaluation.logits - evaluation.normalisers - expected).max())
    return (difference, None) if np.isfinite(difference) else (None, "not finite")
