"""The prefix cache finds what was put in, gives way at its limit, and never hands out half a span."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefix_cache import CachedPrefix, PrefixCache, cut
from engine.tree import TokenTree

BYTES_PER_TOKEN = 2 * 4 * 3  # keys and values, float32, one head of dimension 3


def key_values(tokens: list[int]) -> list[tuple[mx.array, mx.array]]:
    """One layer whose keys and values are the tokens themselves."""
    k = mx.array(np.repeat(np.array(tokens, np.float32)[None, None, :, None], 3, axis=3))
    return [(k, -k)]


def stored_tokens(entry: CachedPrefix) -> list[int]:
    return np.array(entry.key_values[0][0])[0, 0, :, 0].astype(int).tolist()


def trunk_tree(*paths: list[int]) -> TokenTree:
    tree = TokenTree()
    for path in paths:
        tree.extend(tree.root, path, trunk=True)
    return tree


def put(cache: PrefixCache, path: list[int]) -> None:
    """As a pass does: keep what the cache does not have yet of a trunk."""
    tree = trunk_tree(path)
    found = cache.match(tree)
    above = None
    for span in tree.spans():
        above = found[span] if span in found else cache.insert(above, span.tokens, key_values(span.tokens))


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(deadline=None)
@given(paths, paths)
def test_what_is_found_is_exactly_the_longest_known_prefix(known: list[list[int]], asked: list[list[int]]) -> None:
    cache = PrefixCache(2**20)
    for path in known:
        put(cache, path)
    prefixes = {tuple(path[: i + 1]) for path in known for i in range(len(path))}
    assert cache.nbytes == len(prefixes) * BYTES_PER_TOKEN
    tree = trunk_tree(*asked)
    found = cache.match(tree)
    for path in asked:
        node, covered = tree.extend(tree.root, path), 0
        for span in node.path():
            if span in found:
                assert stored_tokens(found[span]) == span.tokens == found[span].tokens
                covered += len(span.tokens)
        longest = max((i + 1 for i in range(len(path)) if tuple(path[: i + 1]) in prefixes), default=0)
        assert covered == longest


def test_the_least_recently_used_prefix_goes_first() -> None:
    cache = PrefixCache(10 * BYTES_PER_TOKEN)
    put(cache, [1] * 4)
    put(cache, [2] * 4)
    assert cache.match(trunk_tree([1] * 4))
    put(cache, [3] * 4)
    assert cache.match(trunk_tree([1] * 4))
    assert not cache.match(trunk_tree([2] * 4))
    assert cache.match(trunk_tree([3] * 4))
    assert cache.nbytes <= cache.limit_bytes


def test_a_prefix_larger_than_the_cache_is_not_kept() -> None:
    cache = PrefixCache(3 * BYTES_PER_TOKEN)
    put(cache, [1, 2, 3, 4])
    assert cache.nbytes == 0


def test_branches_are_never_taken_from_the_cache() -> None:
    cache = PrefixCache(2**20)
    put(cache, [1, 2, 3])
    tree = TokenTree()
    tree.extend(tree.root, [1, 2, 3])
    assert not cache.match(tree)


def test_clear_forgets_everything() -> None:
    cache = PrefixCache(2**20)
    put(cache, [1, 2, 3])
    cache.clear()
    assert cache.nbytes == 0
    assert not cache.match(trunk_tree([1, 2, 3]))


def test_cut_copies() -> None:
    [(k, v)] = cut(key_values([5, 6, 7, 8]), 1, 3)
    assert np.array(k)[0, 0, :, 0].tolist() == [6, 7]
    assert np.array(v)[0, 0, :, 0].tolist() == [-6, -7]
