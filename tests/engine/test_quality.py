"""Figures on labelled records, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from engine.quality import Tally


def test_the_figures_of_three_records() -> None:
    tally = Tally("colour", ["red", "green", "blue"])
    tally.add([0.8, 0.1, 0.1], "red")
    tally.add([0.6, 0.3, 0.1], "green")
    tally.add([0.2, 0.2, 0.6], "blue")
    quality = tally.quality()
    assert (quality.records, quality.values) == (3, 3)
    assert quality.accuracy == pytest.approx(2 / 3)
    assert quality.majority == pytest.approx(1 / 3)
    assert quality.log_loss == pytest.approx(-(math.log(0.8) + math.log(0.3) + math.log(0.6)) / 3)
    assert quality.brier == pytest.approx(((0.04 + 0.01 + 0.01) + (0.36 + 0.49 + 0.01) + (0.04 + 0.04 + 0.16)) / 3)
    # 0.8 is alone in its bin (right: gap 0.2); 0.6 and 0.6 share one (one right: gap 0.1 each)
    assert quality.ece == pytest.approx((0.2 + 0.2) / 3)


def test_a_certain_mistake_has_a_finite_log_loss() -> None:
    tally = Tally("urgent", [True, False])
    tally.add([1.0, 0.0], False)
    assert 20 < tally.quality().log_loss < 30
    assert tally.quality().ece == 1


def test_a_label_that_is_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="purple"):
        Tally("colour", ["red", "green"]).add([0.5, 0.5], "purple")
