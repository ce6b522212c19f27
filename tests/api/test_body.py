"""What the strict JSON reader takes and refuses. Needs no server."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.body import MAX_DEPTH, parse_json
from api.problems import ProblemError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**200), 10**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN, st.booleans())
def test_what_json_can_say_is_read_as_it_is(value: Any, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with suppress(ProblemError):
        parse_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b"1" * 5000,
        b'"\xff"',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        b"[" * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a": 1} {"b": 2}',
    ],
    ids=lambda body: repr(body[:16]),
)
def test_malformed_is_400(body: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        parse_json(body)
    assert (refused.value.status, refused.value.type) == (400, "malformed_json")


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (b'{"a": 1, "a": 1}', ["body", "a"]),
        (b'{"schema": {"f": {"type": "boolean"}, "f": {"type": "boolean"}}}', ["body", "schema", "f"]),
        (b'{"x": [0, {"k": {}, "k": {}, "j": 1}]}', ["body", "x", 1, "k"]),
        (rb'{"context": "a\ud800b"}', ["body", "context"]),
        (rb'{"x": ["\uDFFF"]}', ["body", "x", 0]),
        (rb'{"\ud83d": 1}', ["body", "\ud83d"]),
    ],
)
def test_unusable_json_is_422_with_its_place(body: bytes, loc: list[str | int]) -> None:
    with pytest.raises(ProblemError) as refused:
        parse_json(body)
    shape = json.loads(refused.value.response().body)
    assert shape["status"] == 422
    assert [error["loc"] for error in shape["errors"]] == [loc]


@pytest.mark.parametrize("write", [json.dumps, lambda text: json.dumps(text, ensure_ascii=False)])
def test_escaped_pairs_and_plain_astral_characters_are_the_same_text(write: Callable[[str], str]) -> None:
    assert parse_json(write("a😀\\ud800 ı").encode()) == "a😀\\ud800 ı"


def test_depth_at_the_limit_is_read() -> None:
    value = parse_json(b"[" * MAX_DEPTH + rb'"\ud83d\ude00"' + b"]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH):
        (value,) = value
    assert value == "😀"
