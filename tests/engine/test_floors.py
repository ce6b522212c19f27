"""The floors on paper, against figures that are known or worked out by hand."""

from __future__ import annotations

import pytest

from engine import floors

TINY = floors.ModelSize("tiny", layers=1, width=2, key_width=1, mlp_width=3, vocabulary=5, weight_bytes=2.0)


@pytest.mark.parametrize(("model", "millions"), list(zip(floors.MODELS, (134.5, 1543.7), strict=True)))
def test_a_models_weights_are_as_many_as_its_makers_say(model: floors.ModelSize, millions: float) -> None:
    assert (model.body + model.head) / 1e6 == pytest.approx(millions, rel=1e-3)  # norms and biases are left out


def test_operations_and_bytes_of_a_tiny_model() -> None:
    assert TINY.body == 8 + 4 + 18
    assert floors.operations(TINY, computed=4, cached=10) == 2 * 30 * 4 + 4 * 2 * 4 * (10 + 2)
    assert floors.bytes_moved(TINY, computed=4, cached=10, passes=2) == 2 * 30 * 2 + 2 * 2 * 14


def test_the_baseline_reads_all_weights_for_each_token() -> None:
    chip = floors.Chip("slow", operations=1, bandwidth=100)
    assert floors.baseline_s(TINY, chip, passes=10) == 10 * (30 + 10) * 2 / 100


def test_the_table_has_a_row_for_each_workload_model_and_chip() -> None:
    warm = {"tree_tokens": 322.0, "cached_tokens": 14.0, "passes": 1, "baseline_passes": 109}
    rows = floors.table([{"preset": "fintech_fraud", "warm": warm}]).splitlines()[2:]
    assert len(rows) == len(floors.MODELS) * len(floors.CHIPS)
    assert all(row.startswith("| fintech_fraud | 322 |") for row in rows)
