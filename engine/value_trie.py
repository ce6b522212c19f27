"""The tokens of a field's allowed values as a trie, and the scores that follow from its edges. Plain numpy; no mlx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engine.tree import Ints, common_length

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ValueTrie:
    """Nodes in topological order, one per distinct non-empty prefix of a value's tokens. The trie hangs below the last
    of the `shared` tokens that all values begin with.

    Each node is also the edge that leads to it: token `tokens[n]`, given the row of node `parents[n]` (-1: the row
    before the trie). `leaves[c]` is the node where value c ends.
    """

    shared: list[int]
    parents: Ints  # (N,)
    tokens: Ints  # (N,)
    leaves: Ints  # (values,)
    chains: tuple[tuple[int, list[int]], ...]  # (node above, consecutive nodes): all nodes that have children

    def sequence_scores(self, log_probabilities: Floats) -> Floats:
        """(values,): the log-likelihood of each value's tokens, the sum over its path of log p(token | path before).

        log_probabilities: (N,) of each edge, over the whole vocabulary.
        """
        return self._along_paths(log_probabilities)

    def branch_scores(self, logits: Floats) -> Floats:
        """(values,): log of the product over the path of softmax over each node's children, which is the distribution
        that constrained sampling draws from (a single child has probability 1). Sums to 1 over the values.

        logits: (N,) of each edge.
        """
        totals = np.full(len(self.parents) + 1, -np.inf)
        np.logaddexp.at(totals, self.parents + 1, logits)
        return self._along_paths(logits - totals[self.parents + 1])

    def legal_mass(self, log_probabilities: Floats) -> float:
        """The whole-vocabulary probability, where the values first branch, that lies on tokens of allowed values."""
        return float(np.exp(log_probabilities[self.parents == -1]).sum())

    def _along_paths(self, values: Floats) -> Floats:
        sums = np.zeros(len(values) + 1)
        for node, parent in enumerate(self.parents):
            sums[node + 1] = values[node] + sums[parent + 1]
        return sums[self.leaves + 1]


def build_value_trie(paths: Sequence[Sequence[int]]) -> ValueTrie:
    """The trie of token paths, none of which may be a prefix of another or equal to another (ValueError)."""
    shared = min(min(common_length(paths[0], path) for path in paths), min(map(len, paths)) - 1)
    parents: list[int] = []
    tokens: list[int] = []
    children: dict[tuple[int, int], int] = {}
    leaves: list[int] = []
    for path in paths:
        node = -1
        for token in path[shared:]:
            key = (node, token)
            if key not in children:
                children[key] = len(parents)
                parents.append(node)
                tokens.append(token)
            node = children[key]
        leaves.append(node)
    inner = set(parents) - {-1}
    if inner & set(leaves) or len(set(leaves)) < len(leaves):
        raise ValueError("a value's tokens are a prefix of another value's tokens")
    return ValueTrie(
        shared=list(paths[0][:shared]),
        parents=np.array(parents, np.int64),
        tokens=np.array(tokens, np.int64),
        leaves=np.array(leaves, np.int64),
        chains=_chains(parents, inner),
    )


def distinguishing_prefixes(paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each path up to the token that tells it from all others: what `branch` scoring has to read."""
    order = sorted(range(len(paths)), key=lambda i: list(paths[i]))
    needed = [1] * len(paths)
    for i, j in pairwise(order):
        common = common_length(paths[i], paths[j])
        needed[i], needed[j] = max(needed[i], common + 1), max(needed[j], common + 1)
    return [list(path[:n]) for path, n in zip(paths, needed, strict=True)]


def _chains(parents: list[int], inner: set[int]) -> tuple[tuple[int, list[int]], ...]:
    """Runs of inner nodes in which each is the only inner child of the one before."""
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        if node in inner:
            below.setdefault(parent, []).append(node)
    chains: list[tuple[int, list[int]]] = []
    pending = [(-1, node) for node in reversed(below.get(-1, []))]
    while pending:
        above, node = pending.pop()
        chain = [node]
        while len(below.get(chain[-1], [])) == 1:
            chain.append(below[chain[-1]][0])
        chains.append((above, chain))
        pending += [(chain[-1], child) for child in reversed(below.get(chain[-1], []))]
    return tuple(chains)
