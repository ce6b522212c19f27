"""How many tokens the next batch may hold, so that a step keeps to its time. Plain Python; imports nothing of ours."""

from __future__ import annotations

LEAST_TOKENS = 2048  # however slow the machine is: sharing a context's work over many jobs must stay possible
CLOCK_S = 1e-6  # no step is shorter
WEIGHT = 0.3  # of the newest step in the mean
LEAST_SHARE = 0.25  # of LEAST_TOKENS that a step must compute to tell the speed: small ones are mostly overhead


class StepBudget:
    """At most `most` tokens, fewer where the steps seen say that those would take longer than `target_s`."""

    def __init__(self, most: int, target_s: float) -> None:
        self._most, self._target_s = most, target_s
        self._tokens_per_s: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """A step computed `tokens` in `seconds`."""
        if tokens < LEAST_SHARE * LEAST_TOKENS:
            return
        speed = tokens / max(seconds, CLOCK_S)
        before = speed if self._tokens_per_s is None else self._tokens_per_s
        self._tokens_per_s = before + WEIGHT * (speed - before)

    @property
    def tokens(self) -> int:
        """For the next batch. `most` until a step was seen."""
        if self._tokens_per_s is None:
            return self._most
        return min(self._most, max(LEAST_TOKENS, round(self._tokens_per_s * self._target_s)))
