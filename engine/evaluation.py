"""What a strategy is asked and what it returns: the log-probabilities of a packed tree's edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from engine import device  # isort: skip  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.cpu_kernels import logsumexp
from engine.hooks import HookedModel
from engine.prefix_cache import CachedPrefix
from engine.tree import Ints, PackedTree, Span

Floats = npt.NDArray[np.float64]

HEAD_ROWS = 512  # rows whose logits over the whole vocabulary are in memory at once


@dataclass(frozen=True)
class Edges:
    """Tokens whose probability is wanted: edge e asks for token `tokens[e]` right after packed row `rows[e]`."""

    rows: Ints  # (E,)
    tokens: Ints  # (E,)


@dataclass
class Evaluation:
    """Filled in by a strategy. `logits` (E,): each edge's logit. `normalisers` (E,): log of the sum of exp over the
    whole vocabulary at the edge's row. `passes` counts model calls, each of which waited for the one before."""

    logits: Floats
    normalisers: Floats
    passes: int = 0
    prefill_ms: float = 0.0
    eval_ms: float = 0.0
    computed_tokens: int = 0
    cached_tokens: int = 0


class Strategy(Protocol):
    """A way to evaluate a packed tree with a model. `pass_tokens`: the most rows of one pass, read anew each time."""

    name: str
    uses_prefix_cache: bool
    pass_tokens: int

    def evaluate(self, tree: PackedTree, cached: dict[Span, CachedPrefix], edges: Edges) -> Evaluation: ...


def empty_evaluation(edges: Edges) -> Evaluation:
    return Evaluation(np.zeros(len(edges.rows)), np.zeros(len(edges.rows)))


def read_edges(model: HookedModel, hidden: mx.array, edges: Edges, at: Ints, into: Evaluation) -> None:
    """Fill `into` at the places `at` for `edges`, whose rows count from the first of `hidden` (rows, dim). Takes
    HEAD_ROWS rows through the head at a time."""
    rows, which = np.unique(edges.rows, return_inverse=True)
    for start, stop in slices(len(rows), HEAD_ROWS):
        logits = model.logits(hidden[mx.array(rows[start:stop])])
        inside = np.flatnonzero((which >= start) & (which < stop))
        row, token = mx.array(which[inside] - start), mx.array(edges.tokens[inside])
        normalisers = logsumexp(logits) if device.on_cpu() else mx.logsumexp(logits, axis=-1)
        picked, normalisers = logits[row, token], normalisers[row]
        mx.eval(picked, normalisers)
        into.logits[at[inside]] = np.array(picked)
        into.normalisers[at[inside]] = np.array(normalisers)


class Stopwatch:
    """Milliseconds since it was made or last read."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def lap(self) -> float:
        now = perf_counter()
        elapsed, self._start = (now - self._start) * 1e3, now
        return elapsed


def slices(total: int, size: int) -> Iterator[tuple[int, int]]:
    """[start, stop) pairs that cover `total` in steps of at most `size`."""
    for start in range(0, total, size):
        yield start, min(start + size, total)
