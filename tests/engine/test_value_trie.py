"""Scores of values equal what walking each value's tokens gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scoring import mean_prior, probabilities
from engine.value_trie import build_value_trie, distinguishing_prefixes


@st.composite
def prefix_free_paths(draw: st.DrawFn) -> list[list[int]]:
    """Token paths that end in a token (0) which occurs nowhere else, as a closing quote does."""
    bodies = draw(st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=2, max_size=10, unique_by=tuple))
    return [[7, *body, 0] for body in bodies]


def fake_logits(prefix: tuple[int, ...]) -> np.ndarray:
    """Logits over a vocabulary of 8 that depend on the prefix alone."""
    return np.random.default_rng(hash(prefix) % 2**32).normal(size=8)


def edges(trie, paths) -> tuple[np.ndarray, np.ndarray]:
    """Logits and normalisers of a trie's edges under `fake_logits`."""
    prefix_of = {-1: tuple(trie.shared)}
    logits, normalisers = [], []
    for node, (parent, token) in enumerate(zip(trie.parents.tolist(), trie.tokens.tolist(), strict=True)):
        prefix = prefix_of[parent]
        row = fake_logits(prefix)
        logits.append(row[token])
        normalisers.append(np.logaddexp.reduce(row))
        prefix_of[node] = (*prefix, token)
    return np.array(logits), np.array(normalisers)


@given(prefix_free_paths())
def test_sequence_scores_are_the_likelihoods_of_the_whole_paths(paths: list[list[int]]) -> None:
    trie = build_value_trie(paths)
    logits, normalisers = edges(trie, paths)
    scores = trie.sequence_scores(logits - normalisers)
    for path, score in zip(paths, scores, strict=True):
        expected = 0.0
        for i in range(len(trie.shared), len(path)):
            row = fake_logits(tuple(path[:i]))
            expected += row[path[i]] - np.logaddexp.reduce(row)
        assert score == pytest.approx(expected)


@given(prefix_free_paths())
def test_branch_scores_are_what_constrained_sampling_draws_from(paths: list[list[int]]) -> None:
    for trie in (build_value_trie(paths), build_value_trie(distinguishing_prefixes(paths))):
        logits, _ = edges(trie, paths)
        scores = trie.branch_scores(logits)
        assert np.exp(scores).sum() == pytest.approx(1)
        for path, score in zip(paths, scores, strict=True):
            expected = 0.0
            for i in range(len(path)):
                allowed = {p[i] for p in paths if p[:i] == path[:i] and len(p) > i}
                row = fake_logits(tuple(path[:i]))
                expected += row[path[i]] - np.logaddexp.reduce([row[t] for t in allowed])
            assert score == pytest.approx(expected)


@given(prefix_free_paths())
def test_chains_cover_each_inner_node_once_and_leave_out_the_leaves(paths: list[list[int]]) -> None:
    trie = build_value_trie(paths)
    nodes = [n for _, chain in trie.chains for n in chain]
    assert sorted(nodes) == sorted(set(range(len(trie.parents))) - set(trie.leaves.tolist()))
    for above, chain in trie.chains:
        assert [trie.parents[n] for n in chain] == [above, *chain[:-1]]


def test_values_that_read_alike_are_refused() -> None:
    for paths in ([[1, 2], [1, 2]], [[1, 2], [1, 2, 3]]):
        with pytest.raises(ValueError, match="prefix of another"):
            build_value_trie(paths)


def test_probabilities_subtract_most_of_the_prior_and_divide_by_the_temperature() -> None:
    scores, prior = np.log([0.5, 0.3, 0.2]), np.log([0.9, 0.05, 0.05])
    weights = np.array([0.5 / 0.9**0.9, 0.3 / 0.05**0.9, 0.2 / 0.05**0.9])
    assert probabilities(scores, prior, 1.0) == pytest.approx(weights / weights.sum())
    assert probabilities(scores, None, 1.0) == pytest.approx([0.5, 0.3, 0.2])
    assert probabilities(scores, None, 2.0) == pytest.approx(np.sqrt([0.5, 0.3, 0.2]) / np.sqrt([0.5, 0.3, 0.2]).sum())
    assert mean_prior([np.array([0.0, 2.0]), np.array([2.0, 4.0])]).tolist() == [1.0, 3.0]


def test_very_unlikely_values_do_not_overflow() -> None:
    p = probabilities(np.array([-4000.0, -3000.0, -9000.0]), None, 1.0)
    assert p.sum() == 1
    assert p.argmax() == 1
    assert not any(map(math.isnan, p))
