"""The packed strategy: the whole tree in one forward pass over an unmodified mlx-lm model.

A tree that exceeds the pass budget is taken in consecutive slices of its depth-first order. Keys and values that later
slices still attend to (a trunk's, mostly) are carried over; all others are dropped. So a long trunk is prefilled in
chunks and a wide tree split by branches with one mechanism.
"""

from __future__ import annotations

from typing import cast

from engine import device  # isort: skip  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
import numpy as np

from engine.cpu_kernels import attention_blocks
from engine.evaluation import Edges, Evaluation, Stopwatch, empty_evaluation, read_edges, slices
from engine.hooks import HookedModel, TreeCache
from engine.prefix_cache import CachedPrefix, KeyValues, PrefixCache, cut
from engine.tree import Ints, PackedTree, Span, ancestor_mask


class _Keys:
    """Keys and values computed so far that later rows attend to, and for each key its rows below and its position."""

    def __init__(self, tree: PackedTree, cached: dict[Span, CachedPrefix], layers: int) -> None:
        def per_token(values: list[int]) -> Ints:
            return np.repeat(np.array(values, np.int64), [len(c.span.tokens) for c in tree.cached])

        self.first = per_token([c.first for c in tree.cached])
        self.last = per_token([c.last for c in tree.cached])
        self.positions = np.array([p for c in tree.cached for p in range(c.span.depth, c.span.end)], np.int64)
        stored = [cached[c.span].key_values for c in tree.cached]
        self.key_values: KeyValues | None = None
        if stored:
            self.key_values = [
                (
                    mx.concatenate([kv[i][0] for kv in stored], axis=2),
                    mx.concatenate([kv[i][1] for kv in stored], axis=2),
                )
                for i in range(layers)
            ]

    def carry(self, key_values: KeyValues, rows: Ints, tree: PackedTree, next_row: int) -> None:
        """Take over a pass's keys (those given to it and `rows`), and drop those that no row from next_row on needs."""
        first = np.concatenate([self.first, rows])
        last = np.concatenate([self.last, tree.last[rows]])
        positions = np.concatenate([self.positions, tree.positions[rows]])
        kept = np.flatnonzero(last >= next_row)
        self.first, self.last, self.positions = first[kept], last[kept], positions[kept]
        index = mx.array(kept)
        self.key_values = [(k[:, :, index], v[:, :, index]) for k, v in key_values] if len(kept) else None


class PackedStrategy:
    """Evaluates a packed tree in as few forward passes as the budget of `pass_tokens` rows allows."""

    name = "packed"
    uses_prefix_cache = True

    def __init__(self, model: HookedModel, prefix_cache: PrefixCache, pass_tokens: int) -> None:
        self.model = model
        self.prefix_cache = prefix_cache
        self.pass_tokens = pass_tokens

    def evaluate(self, tree: PackedTree, cached: dict[Span, CachedPrefix], edges: Edges) -> Evaluation:
        out = empty_evaluation(edges)
        out.cached_tokens = sum(len(c.span.tokens) for c in tree.cached)
        out.computed_tokens = len(tree)
        keys = _Keys(tree, cached, self.model.layers)
        entries: dict[Span, CachedPrefix | None] = dict(cached)
        clock = Stopwatch()
        for start, stop in slices(len(tree), self.pass_tokens):
            hidden, key_values = self._forward(tree, keys, start, stop)
            wanted = np.flatnonzero((edges.rows >= start) & (edges.rows < stop))
            if len(wanted):
                read_edges(self.model, hidden, Edges(edges.rows[wanted] - start, edges.tokens[wanted]), wanted, out)
            self._keep_trunks(tree, entries, key_values, len(keys.first), start, stop)
            if stop < len(tree):
                keys.carry(key_values, np.arange(start, stop), tree, stop)
                mx.eval(keys.key_values or hidden)
            out.passes += 1
            if len(wanted):
                out.eval_ms += clock.lap()
            else:
                out.prefill_ms += clock.lap()
        return out

    def _forward(self, tree: PackedTree, keys: _Keys, start: int, stop: int) -> tuple[mx.array, KeyValues]:
        """One model call on rows start to stop: hidden states (rows, dim), and per layer all keys and values used."""
        rows = np.arange(start, stop)
        mask = ancestor_mask(
            np.concatenate([keys.first, rows]), np.concatenate([keys.last, tree.last[rows]]), start, stop
        )
        positions = mx.array(tree.positions[rows].astype(np.int32))
        depths = mx.array(np.concatenate([keys.positions, tree.positions[rows]]).astype(np.int32))
        above = keys.key_values or cast(list[None], [None] * self.model.layers)
        blocks = attention_blocks(mask) if device.on_cpu() else None
        tree_mask = mx.array(mask)
        caches = [TreeCache(kv, positions, depths, tree_mask, blocks) for kv in above]
        hidden = self.model.hidden(mx.array(tree.tokens[rows].astype(np.int32))[None], caches)[0]
        used = [(c.keys, c.values) for c in caches if c.keys is not None and c.values is not None]
        return hidden, used

    def _keep_trunks(
        self,
        tree: PackedTree,
        entries: dict[Span, CachedPrefix | None],
        used: KeyValues,
        offset: int,
        start: int,
        stop: int,
    ) -> None:
        """Put what rows start to stop computed of trunk spans into the prefix cache, each part below the one before."""
        for span in tree.spans:
            first, end = max(span.row, start), min(span.row + len(span.tokens), stop)
            if not span.trunk or first >= end or span.parent is None:
                continue
            at_root = first == span.row and span.parent.parent is None
            above = entries.get(span if first > span.row else span.parent)
            if above is None and not at_root:
                continue
            at = offset + first - start
            part = cut(used, at, at + end - first)
            entries[span] = self.prefix_cache.insert(above, span.tokens[first - span.row : end - span.row], part)
