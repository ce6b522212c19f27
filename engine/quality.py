"""How good answers are on labelled records: accuracy, log-loss, Brier score, calibration error. Plain numpy; no mlx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from engine.schema import Value

BINS = 15  # of confidence, equally wide, for the calibration error
SMALLEST = 1e-12  # a probability of 0 for the true value would make the log-loss infinite


@dataclass(frozen=True)
class FieldQuality:
    """One field's figures over `records` labelled records.

    accuracy: share of records whose most probable value is the label. majority: what always answering the commonest
    label would get. log_loss: mean of -ln p(label), in nats. brier: mean over records of the squared error summed over
    the values, 0 to 2 (Brier 1950). ece: expected calibration error, the mean distance between confidence and accuracy
    over 15 equally wide bins of confidence, weighted by their records (Naeini et al. 2015).
    """

    field: str
    values: int
    records: int
    accuracy: float
    majority: float
    log_loss: float
    brier: float
    ece: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Tally:
    """Collects one field's answers; `quality` needs at least one."""

    def __init__(self, field: str, values: Sequence[Value]) -> None:
        self._field, self._values = field, list(values)
        self._probabilities: list[Sequence[float]] = []
        self._labels: list[int] = []

    def add(self, probabilities: Sequence[float], label: Value) -> None:
        """probabilities: (values,). Raises ValueError when `label` is not one of the values."""
        self._labels.append(self._values.index(label))
        self._probabilities.append(probabilities)

    def __len__(self) -> int:
        return len(self._labels)

    def quality(self) -> FieldQuality:
        p, label = np.array(self._probabilities), np.array(self._labels)
        answer, confidence = p.argmax(axis=1), p.max(axis=1)
        truth = np.eye(len(self._values))[label]
        right = answer == label
        return FieldQuality(
            field=self._field,
            values=len(self._values),
            records=len(label),
            accuracy=float(right.mean()),
            majority=float(np.bincount(label).max() / len(label)),
            log_loss=float(-np.log(np.maximum(p[np.arange(len(label)), label], SMALLEST)).mean()),
            brier=float(((p - truth) ** 2).sum(axis=1).mean()),
            ece=_calibration_error(confidence, right),
        )


def _calibration_error(confidence: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.zeros(BINS)
    np.add.at(gaps, bins, confidence - right)
    return float(np.abs(gaps).sum() / len(confidence))
