"""Answers worked out without anything of ours but the prompt's tokens: plain mlx-lm calls, value by value."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from engine import Engine, Request
from engine.prompt import FieldPrompt, Prompt


def value_paths(field: FieldPrompt) -> list[list[int]]:
    """The tokens of each value below the trie's shared tokens."""
    paths = []
    for leaf in field.trie.leaves.tolist():
        path: list[int] = []
        while leaf >= 0:
            path.insert(0, int(field.trie.tokens[leaf]))
            leaf = int(field.trie.parents[leaf])
        paths.append(path)
    return paths


def next_token_logits(engine: Engine, tokens: list[int]) -> np.ndarray:
    """Logits (vocabulary,) after `tokens`, by one call without a cache."""
    return np.array(engine.model.model(mx.array(tokens)[None])[0, -1].astype(mx.float32), np.float64)


def log_scores(engine: Engine, prompt: Prompt, field: FieldPrompt, scoring: str) -> np.ndarray:
    """(values,): each value's log-score, walking its tokens one plain call at a time."""
    start = [*(t for part in prompt.trunk for t in part), *field.question, *field.trie.shared]
    paths = value_paths(field)
    logits: dict[tuple[int, ...], np.ndarray] = {}
    scores = np.zeros(len(paths))
    for index, path in enumerate(paths):
        for i, token in enumerate(path):
            before = tuple(path[:i])
            if before not in logits:
                logits[before] = next_token_logits(engine, [*start, *before])
            row = logits[before]
            allowed = {p[i] for p in paths if tuple(p[:i]) == before and len(p) > i}
            among = row if scoring == "sequence" else row[list(allowed)]
            scores[index] += row[token] - np.logaddexp.reduce(among)
    return scores


def distribution(engine: Engine, request: Request, name: str, prior: bool) -> np.ndarray:
    """(values,): the field's probabilities at temperature 1."""

    def scores(prompt: Prompt) -> np.ndarray:
        [field] = [f for f in prompt.fields if f.definition.name == name]
        return log_scores(engine, prompt, field, request.options.scoring)

    found = scores(engine.prompts.build(request))
    if prior:
        found = found - 0.9 * np.mean([scores(p) for p in engine.prompts.content_free(request)], axis=0)
    weights = np.exp(found - found.max())
    return weights / weights.sum()
