"""The token tree: everything a batch must read, each shared token once. Plain numpy; imports no mlx.

A batch's token paths are merged into a radix tree of spans. `pack` lays the tree out in depth-first order as one
sequence: row i holds one token, its position is its depth, and it may attend to row j exactly when j is an ancestor of
i or i itself. In depth-first order a row's descendants are consecutive, so "j is an ancestor of i" is
`j <= i <= last[j]`, and the whole attention mask is two comparisons. Spans whose keys and values are already in the
prefix cache get no rows; they are keys with a range of rows below them like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(eq=False)
class Span:
    """A run of tokens without branching. A span object stands for the position after its last token, and keeps doing
    so when a later path splits it (the part before the split becomes a new span above it)."""

    tokens: list[int]
    parent: Span | None
    depth: int  # position of the first token
    trunk: bool = False  # worth keeping in the prefix cache
    children: dict[int, Span] = field(default_factory=dict)
    row: int = -1  # packed row of the first token, set by `pack`

    @property
    def end(self) -> int:
        return self.depth + len(self.tokens)

    def path(self) -> list[Span]:
        """The spans from the root (left out) to this one."""
        spans: list[Span] = []
        span: Span | None = self
        while span is not None and span.parent is not None:
            spans.append(span)
            span = span.parent
        return spans[::-1]

    def rows(self, count: int) -> list[int]:
        """The packed rows of the last `count` tokens on the path to this span's end, first to last."""
        rows: list[int] = []
        span: Span = self
        while count > 0:
            taken = min(count, len(span.tokens))
            stop = span.row + len(span.tokens)
            rows[:0] = range(stop - taken, stop)
            count -= taken
            if count > 0:
                assert span.parent is not None
                span = span.parent
        return rows


class TokenTree:
    """Grows by `extend`; equal prefixes are merged as they arrive."""

    def __init__(self) -> None:
        self.root = Span([], None, 0)

    def extend(self, start: Span, tokens: Sequence[int], *, trunk: bool = False) -> Span:
        """Add `tokens` below `start` and return the position after the last one. Costs the length of `tokens`."""
        node, rest = start, list(tokens)
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                child = Span(rest, node, node.end, trunk)
                node.children[rest[0]] = child
                return child
            common = common_length(child.tokens, rest)
            if common < len(child.tokens):
                child = self.split(child, common)
            child.trunk = child.trunk or trunk
            node, rest = child, rest[common:]
        return node

    def split(self, span: Span, at: int) -> Span:
        """Put the first `at` tokens of `span` into a new span above it, and return that one."""
        assert span.parent is not None
        upper = Span(span.tokens[:at], span.parent, span.depth, span.trunk, {span.tokens[at]: span})
        span.parent.children[span.tokens[0]] = upper
        span.tokens, span.parent, span.depth = span.tokens[at:], upper, span.depth + at
        return upper

    def spans(self) -> Iterator[Span]:
        """Every span but the root, parents before children, depth first."""
        stack = list(self.root.children.values())[::-1]
        while stack:
            span = stack.pop()
            yield span
            stack.extend(list(span.children.values())[::-1])


@dataclass(frozen=True)
class PackedTree:
    """A token tree as one sequence of L rows in depth-first order, below spans whose keys and values are cached."""

    tokens: Ints  # (L,)
    positions: Ints  # (L,)
    last: Ints  # (L,) the last row below each row (itself for a leaf)
    spans: tuple[Span, ...]  # the spans that have rows
    cached: tuple[CachedSpan, ...]  # the spans that have none, parents first

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class CachedSpan:
    """A span that needs no rows, and the rows below it: `first` to `last`, both included."""

    span: Span
    first: int
    last: int


def ancestor_mask(first: Ints, last: Ints, start: int, stop: int) -> Mask:
    """(stop - start, keys): True where packed row start+i lies in [first[k], last[k]], that is below (or at) key k."""
    rows = np.arange(start, stop)[:, None]
    return (first <= rows) & (rows <= last)


def pack(tree: TokenTree, cached: Collection[Span] = ()) -> PackedTree:
    """Lay the tree out in depth-first order and set each span's `row`. `cached` is closed under parents."""
    skip = {id(span) for span in cached}
    order = tuple(tree.spans())
    spans = tuple(span for span in order if id(span) not in skip)
    row = 0
    first: dict[int, int] = {}  # id of a span: the row that is, or would be, its first
    for span in order:
        first[id(span)] = row
        if id(span) in skip:
            continue
        span.row = row
        row += len(span.tokens)
    below: dict[int, int] = {}  # id of a span: its last descendant's row
    for span in reversed(order):
        rows = 0 if id(span) in skip else len(span.tokens)
        below[id(span)] = max((below[id(c)] for c in span.children.values()), default=first[id(span)] + rows - 1)
    lengths = [len(span.tokens) for span in spans]
    tokens = np.fromiter((t for span in spans for t in span.tokens), np.int64, row)
    starts = np.repeat(np.array([span.row for span in spans], np.int64), lengths)
    depths = np.repeat(np.array([span.depth for span in spans], np.int64), lengths)
    last = np.repeat(np.array([below[id(span)] for span in spans], np.int64), lengths)
    hidden = tuple(CachedSpan(s, first[id(s)], below[id(s)]) for s in order if id(s) in skip)
    return PackedTree(tokens, depths + np.arange(row) - starts, last, spans, hidden)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first items two sequences share."""
    shorter = min(len(a), len(b))
    return shorter if a[:shorter] == b[:shorter] else next(i for i in range(shorter) if a[i] != b[i])
