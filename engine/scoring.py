"""From edge log-probabilities to one field's probabilities. Plain numpy; imports no mlx."""

from __future__ import annotations

import numpy as np

from engine.request import Scoring
from engine.value_trie import Floats, ValueTrie

# How much of the prior is subtracted; the whole of it over-corrects where the values are many. Measured over the
# labelled sets that the README lists, like the content-free context itself (`CONTENT_FREE_CONTEXTS`).
PRIOR_WEIGHT = 0.9


def value_scores(trie: ValueTrie, scoring: Scoring, logits: Floats, log_probabilities: Floats) -> Floats:
    """(values,): the log-score of each value, from the trie's edges (N,)."""
    return trie.branch_scores(logits) if scoring == "branch" else trie.sequence_scores(log_probabilities)


def probabilities(scores: Floats, prior: Floats | None, temperature: float) -> Floats:
    """(values,): softmax((scores - PRIOR_WEIGHT * prior) / temperature).

    With `sequence` scores, their content-free counterparts as the prior and a weight of 1 this is the
    domain-conditional pointwise mutual information of Holtzman et al. 2021 ("Surface Form Competition"); with `branch`
    scores, the contextual calibration of Zhao et al. 2021 ("Calibrate Before Use"). At temperature 1 without a prior,
    `branch` scores pass through unchanged.
    """
    corrected = (scores if prior is None else scores - PRIOR_WEIGHT * prior) / temperature
    weights = np.exp(corrected - corrected.max())
    return np.asarray(weights / weights.sum())


def mean_prior(scores: list[Floats]) -> Floats:
    """(values,): the prior over several content-free contexts, the mean of their log-scores."""
    return np.asarray(np.mean(scores, axis=0))
