"""The packed tree is the set of token paths that were put in, each shared token once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.tree import Span, TokenTree, ancestor_mask, pack

paths = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=12)


def planted(paths: list[list[int]]) -> tuple[TokenTree, list[Span]]:
    tree = TokenTree()
    return tree, [tree.extend(tree.root, path) for path in paths]


@given(paths)
def test_every_path_can_be_read_back_from_its_rows(paths: list[list[int]]) -> None:
    tree, ends = planted(paths)
    packed = pack(tree)
    for path, end in zip(paths, ends, strict=True):
        rows = end.rows(len(path))
        assert packed.tokens[rows].tolist() == path
        assert packed.positions[rows].tolist() == list(range(len(path)))


@given(paths)
def test_each_distinct_prefix_is_one_row(paths: list[list[int]]) -> None:
    tree, _ = planted(paths)
    prefixes = {tuple(path[: i + 1]) for path in paths for i in range(len(path))}
    assert len(pack(tree)) == len(prefixes)


@given(paths)
def test_a_row_attends_to_its_ancestors_and_itself_only(paths: list[list[int]]) -> None:
    tree, ends = planted(paths)
    packed = pack(tree)
    expected = np.zeros((len(packed), len(packed)), bool)
    for path, end in zip(paths, ends, strict=True):
        rows = end.rows(len(path))
        for i, row in enumerate(rows):
            expected[row, rows[: i + 1]] = True
    mask = ancestor_mask(np.arange(len(packed)), packed.last, 0, len(packed))
    assert (mask == expected).all()


@given(paths, st.data())
def test_cached_spans_have_no_rows_and_are_attended_to_from_below(paths: list[list[int]], data: st.DataObject) -> None:
    tree, ends = planted(paths)
    top = list(tree.root.children.values())
    cached = {span for span in top if data.draw(st.booleans())}
    packed = pack(tree, cached)
    assert {c.span for c in packed.cached} == cached
    for path, end in zip(paths, ends, strict=True):
        above = end.path()[0]
        own = len(path) - (len(above.tokens) if above in cached else 0)
        rows = end.rows(own)
        assert packed.tokens[rows].tolist() == path[len(path) - own :]
        for entry in packed.cached:
            below = ancestor_mask(np.array([entry.first]), np.array([entry.last]), 0, len(packed))[:, 0]
            assert below[rows].all() == (entry.span is above) or not rows


def test_a_position_survives_the_split_of_its_span() -> None:
    tree = TokenTree()
    long = tree.extend(tree.root, [1, 2, 3, 4], trunk=True)
    short = tree.extend(tree.root, [1, 2], trunk=True)
    other = tree.extend(short, [9])
    assert [s.tokens for s in long.path()] == [[1, 2], [3, 4]]
    assert short.end == 2
    assert other.depth == 2
    assert all(s.trunk for s in long.path())
    assert not other.trunk
