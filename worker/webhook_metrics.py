"""The webhook sender's Prometheus series, in its own registry because it is a process of its own."""

from __future__ import annotations

from prometheus_client import Counter

from worker.metrics import PREFIX, new_registry

OUTCOMES = (
    "succeeded",
    "http_error",
    "redirect",
    "gone",
    "timeout",
    "unreachable",
    "address_refused",
    "error",
)

REGISTRY = new_registry()

_attempts = Counter(
    "webhook_attempts", "Attempts to deliver a webhook.", ["outcome"], namespace=PREFIX, registry=REGISTRY
)
for _outcome in OUTCOMES:
    _attempts.labels(_outcome)  # a series that first appears at 1 hides that increase from rate()


def attempted(outcome: str) -> None:
    """One attempt ended; `outcome` is one of `OUTCOMES`."""
    _attempts.labels(outcome).inc()
