"""The `Prefer` header: read where it can be, ignored where it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.prefer import wait_seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], None),
        (["wait=5"], 5),
        (["Wait = 5"], 5),
        (['wait="5"'], 5),
        (["respond-async, wait=7"], 7),
        (["respond-async", "wait=7; foo=bar"], 7),
        (["wait=3, wait=9"], 3),
        (["wait=0"], 0),
        (["wait=100"], 30),
        (["wait=999999999"], 30),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["wait=" + "9" * 5000], None),
        (["wait"], None),
        (["await=5"], None),
    ],
)
def test_wait(headers: list[str], seconds: int | None) -> None:
    assert wait_seconds(headers, 30) == seconds


@given(st.lists(st.text()))
def test_nothing_raises(headers: list[str]) -> None:
    wait_seconds(headers, 30)
