"""The broadcast strategy: each path below a trunk is a row of a right-padded batch over copies of the trunk's cache.

It asks nothing of a model but mlx-lm's own batching, so it also serves hybrid and recurrent models, at the price of
reading tokens that paths share once per path. It keeps nothing in the prefix cache. `SequentialStrategy` reads one
path at a time without batching: the yardstick for both others, never chosen to answer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from engine.evaluation import Edges, Evaluation, Stopwatch, empty_evaluation, read_edges, slices
from engine.hooks import HookedModel
from engine.prefix_cache import CachedPrefix
from engine.tree import Ints, PackedTree, Span

PREFILL_CHUNK = 512  # tokens of a trunk in one model call


@dataclass(frozen=True)
class _Path:
    """Tokens from a trunk's end to a leaf, and the packed row of each."""

    tokens: list[int]
    rows: list[int]


class BroadcastStrategy:
    """Evaluates a packed tree path by path, as many paths at once as `pass_tokens` allows for trunk copies and rows."""

    name = "broadcast"
    uses_prefix_cache = False

    def __init__(self, model: HookedModel, pass_tokens: int) -> None:
        self.model = model
        self.pass_tokens = pass_tokens

    def evaluate(self, tree: PackedTree, cached: dict[Span, CachedPrefix], edges: Edges) -> Evaluation:
        out = empty_evaluation(edges)
        done = np.zeros(len(edges.rows), bool)
        clock = Stopwatch()
        for trunk, paths in _paths_by_trunk(tree):
            cache = self._prefill(trunk, out)
            out.prefill_ms += clock.lap()
            for group in self._groups(paths, len(trunk)):
                self._read(group, cache, edges, done, out)
                out.passes += 1
            out.eval_ms += clock.lap()
        return out

    def _prefill(self, trunk: list[int], out: Evaluation) -> list[Any]:
        cache = make_prompt_cache(self.model.model)
        for start, stop in slices(len(trunk), PREFILL_CHUNK):
            hidden = self.model.hidden(mx.array(trunk[start:stop])[None], cache)
            mx.eval(hidden, [c.state for c in cache])
            out.passes += 1
        out.computed_tokens += len(trunk)
        return cache

    def _groups(self, paths: list[_Path], trunk_length: int) -> Iterator[list[_Path]]:
        paths = sorted(paths, key=lambda p: len(p.tokens))  # equal lengths together: least padding
        group: list[_Path] = []
        for path in paths:
            if group and (len(group) + 1) * (trunk_length + len(path.tokens)) > self.pass_tokens:
                yield group
                group = []
            group.append(path)
        if group:
            yield group

    def _read(self, group: list[_Path], cache: list[Any], edges: Edges, done: Ints, out: Evaluation) -> None:
        """One model call on a group of paths; fills the edges that no earlier call filled."""
        width = max(len(path.tokens) for path in group)
        batch = mx.array([path.tokens + [0] * (width - len(path.tokens)) for path in group])
        hidden = self.model.hidden(batch, self._copies(cache, len(group)))
        mx.eval(hidden)
        out.computed_tokens += batch.size
        for index, path in enumerate(group):
            rows = np.array(path.rows)
            wanted = np.flatnonzero(np.isin(edges.rows, rows) & ~done)
            done[wanted] = True
            if len(wanted):
                inside = np.searchsorted(rows, edges.rows[wanted])  # rows grow along a path
                read_edges(self.model, hidden[index], Edges(inside, edges.tokens[wanted]), wanted, out)

    def _copies(self, cache: list[Any], count: int) -> list[Any]:
        return [type(layer).merge([layer] * count) for layer in cache]


class SequentialStrategy(BroadcastStrategy):
    """One path per model call, over a plain copy of the trunk's cache."""

    name = "sequential"

    def _groups(self, paths: list[_Path], trunk_length: int) -> Iterator[list[_Path]]:
        yield from ([path] for path in paths)

    def _copies(self, cache: list[Any], count: int) -> list[Any]:
        return copy.deepcopy(cache)


def _paths_by_trunk(tree: PackedTree) -> Iterator[tuple[list[int], list[_Path]]]:
    """Each trunk's tokens from the root, with the paths that hang directly below it."""
    for span in tree.spans:
        if not span.trunk:
            continue
        paths = [p for child in span.children.values() if not child.trunk for p in _leaf_paths(child, [], [])]
        if paths:
            yield [t for s in span.path() for t in s.tokens], paths


def _leaf_paths(span: Span, tokens: list[int], rows: list[int]) -> Iterator[_Path]:
    tokens = tokens + span.tokens
    rows = rows + list(range(span.row, span.row + len(span.tokens)))
    if not span.children:
        yield _Path(tokens, rows)
    for child in span.children.values():
        yield from _leaf_paths(child, tokens, rows)
