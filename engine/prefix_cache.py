"""Keys and values of trunks, by token prefix: a radix tree bounded in bytes, least recently used first out.

Only whole passes write to it, and only between passes; it is not safe to share between threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx

from engine.tree import Span, TokenTree, common_length

KeyValues = list[tuple[mx.array, mx.array]]  # per layer: keys and values, each (1, heads, tokens, dim)


@dataclass(eq=False)
class CachedPrefix:
    """One span of cached tokens below another."""

    tokens: list[int]
    key_values: KeyValues
    parent: CachedPrefix | None
    children: dict[int, CachedPrefix] = field(default_factory=dict)
    last_used: int = 0
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.nbytes = sum(k.nbytes + v.nbytes for k, v in self.key_values)


class PrefixCache:
    """`match` finds what a tree need not compute, `insert` keeps what a pass computed.

    limit_bytes: the most that keys and values may hold. nbytes: what they hold now. hits: spans found since the start.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self.hits = 0
        self._clock = 0
        self._root = CachedPrefix([], [], None)
        self._entries: set[CachedPrefix] = set()

    def match(self, tree: TokenTree) -> dict[Span, CachedPrefix]:
        """The trunk spans of `tree` that are cached, each with its entry. Splits spans of the tree and entries of the
        cache where the two part, so that every match is of whole spans."""
        self._clock += 1
        found: dict[Span, CachedPrefix] = {}
        pending = [(span, self._root) for span in tree.root.children.values()]
        while pending:
            span, above = pending.pop()
            entry = above.children.get(span.tokens[0]) if span.trunk else None
            if entry is None:
                continue
            common = common_length(span.tokens, entry.tokens)
            if common < len(entry.tokens):
                entry = self._split(entry, common)
            if common < len(span.tokens):
                span = tree.split(span, common)
            entry.last_used = self._clock
            found[span] = entry
            pending += [(child, entry) for child in span.children.values()]
        self.hits += len(found)
        return found

    def insert(self, above: CachedPrefix | None, tokens: list[int], key_values: KeyValues) -> CachedPrefix | None:
        """Keep a span below `above` (None: at the root). Returns its entry, or None when it cannot fit."""
        if above is not None and above not in self._entries:  # evicted since it was matched
            return None
        parent = above or self._root
        entry = CachedPrefix(list(tokens), key_values, parent, last_used=self._clock)
        if entry.nbytes > self.limit_bytes or tokens[0] in parent.children:
            return None
        parent.children[tokens[0]] = entry
        self._entries.add(entry)
        self.nbytes += entry.nbytes
        self._evict(keep=entry)
        return entry

    def clear(self) -> None:
        """Forget everything, as after an interrupted pass."""
        self._root = CachedPrefix([], [], None)
        self._entries.clear()
        self.nbytes = 0

    def _evict(self, keep: CachedPrefix) -> None:
        while self.nbytes > self.limit_bytes:
            leaves = [e for e in self._entries if not e.children and e is not keep]
            if not leaves:
                return
            oldest = min(leaves, key=lambda e: e.last_used)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.tokens[0]]
            self._entries.discard(oldest)
            self.nbytes -= oldest.nbytes

    def _split(self, entry: CachedPrefix, at: int) -> CachedPrefix:
        """Put the first `at` tokens of `entry` into a new entry above it, and return that one."""
        assert entry.parent is not None
        upper = CachedPrefix(entry.tokens[:at], cut(entry.key_values, 0, at), entry.parent, {entry.tokens[at]: entry})
        upper.last_used = entry.last_used
        entry.parent.children[entry.tokens[0]] = upper
        entry.key_values = cut(entry.key_values, at, len(entry.tokens))
        entry.tokens, entry.parent = entry.tokens[at:], upper
        entry.nbytes = sum(k.nbytes + v.nbytes for k, v in entry.key_values)
        self._entries.add(upper)
        return upper


def cut(key_values: KeyValues, start: int, stop: int) -> KeyValues:
    """Copies of tokens start to stop, so that the larger arrays can be freed."""
    copies = [(mx.contiguous(k[:, :, start:stop]), mx.contiguous(v[:, :, start:stop])) for k, v in key_values]
    mx.eval(copies)
    return copies
