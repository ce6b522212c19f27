"""Which Host headers mean this machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.guard import is_local


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8000",
        "localhost.",
        "app.localhost",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.8.9.1",
        "[::1]:80",
    ],
)
def test_loopback_names(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.example",
        "evil.example#localhost",
        "localhost@evil.example",
        "evil@localhost",
        "0.0.0.0:8000",
        "[::]",
        "10.0.0.1",
        "2130706433",
        "0x7f.1",
        "[::1",
        "localhost:port",
        "localhost:8000:8000",
    ],
)
def test_other_names(host: str) -> None:
    assert not is_local(host)


@given(st.text())
def test_nothing_raises(host: str) -> None:
    is_local(host)
