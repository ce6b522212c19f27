"""A bad request never gives a 5xx, whatever it is; and what is taken is a job that can be fetched."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.anyio
# The application outlives one example: examples only add jobs to its queue.
SAME_CLIENT = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

SURROGATES = st.text(st.characters(categories=["Cs", "Lu", "Cc", "So"]), max_size=6)
WORDS = st.sampled_from(
    [
        "schema",
        "preset",
        "type",
        "enum",
        "boolean",
        "score",
        "multi",
        "choices",
        "levels",
        "nullable",
        "url",
        "a",
        "",
        "$ref",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | SURROGATES
    | WORDS
    | st.sampled_from(
        ["https://[", "https://\u2488com/", "https://a.b:99999/", "http://%zz", "https://xn--/", "whsec_=="]
    )
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | SURROGATES, inner, max_size=4),
    max_leaves=12,
)
VALID: dict[str, Any] = {
    "context": "The bill is wrong.",
    "schema": {
        "priority": {"type": "enum", "choices": ["high", "low"], "description": "Urgency"},
        "product": {"type": "enum", "choices": {"app": "The phone app", "web": "The web site"}},
        "severity": {"type": "score", "levels": ["none", "minor", "major"]},
        "angry": {"type": "boolean"},
    },
    "preset": None,
    "options": {"layout": "joint", "scoring": "branch", "temperature": 1.5, "top_k": 3, "min_confidence": 0.5},
    "priority": "bulk",
    "timeout_s": 5,
    "result_ttl_s": 60,
    "metadata": {"k": "v"},
    "webhook": {"url": "https://hooks.fieldcast.dev/", "events": ["job.failed"], "secret": "whsec_" + "a2tr" * 10},
}


def places(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def replaced(node: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = replaced(node[path[0]], path[1:], value)
    return copy


async def check(client: httpx.AsyncClient, content: bytes, content_type: str = "application/json") -> None:
    answer = await client.post("/v1/jobs", content=content, headers={"content-type": content_type})
    body = json.loads(answer.content)
    if answer.status_code == 202:
        assert (await client.get(answer.headers["location"])).json()["id"] == body["id"]
    else:
        assert answer.status_code in (400, 415, 422), body
        assert body["status"] == answer.status_code
        assert answer.headers["content-type"] == "application/problem+json"


@SAME_CLIENT
@given(place=st.sampled_from(places(VALID)), value=JSON)
async def test_any_value_at_any_place(client: httpx.AsyncClient, place: tuple[str | int, ...], value: Any) -> None:
    await check(client, json.dumps(replaced(VALID, place, value)).encode())


@SAME_CLIENT
@given(schema=st.dictionaries(SURROGATES | WORDS, JSON, max_size=4))
async def test_any_schema(client: httpx.AsyncClient, schema: dict[str, Any]) -> None:
    await check(client, json.dumps({"context": "x", "schema": schema}).encode())


@SAME_CLIENT
@given(content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), cut=st.integers(0, 60))
async def test_any_bytes(client: httpx.AsyncClient, content: bytes, cut: int) -> None:
    await check(client, content[:cut])


@SAME_CLIENT
@given(content_type=st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=30))
async def test_any_content_type(client: httpx.AsyncClient, content_type: str) -> None:
    answer = await client.post("/v1/jobs", content=b"{}", headers=[(b"content-type", content_type.encode("latin-1"))])
    assert answer.status_code in (415, 422)


@SAME_CLIENT
@given(
    path=st.text(max_size=20),
    prefer=st.text(st.characters(max_codepoint=255), max_size=20),
    tag=st.text(st.characters(max_codepoint=255), max_size=20),
    suffix=st.sampled_from(["", "/cancel", "/requeue"]),
    method=st.sampled_from(["GET", "POST", "DELETE"]),
)
async def test_any_path_and_header(
    client: httpx.AsyncClient, path: str, prefer: str, tag: str, suffix: str, method: str
) -> None:
    url = httpx.URL(
        "http://127.0.0.1:8000", raw_path=b"/v1/jobs/" + httpx.QueryParams({"": path}).__str__()[1:].encode()
    )
    headers = [(b"prefer", prefer.encode("latin-1")), (b"if-none-match", tag.encode("latin-1"))]
    answer = await client.request(method, f"{url}{suffix}", headers=headers)
    assert 400 <= answer.status_code < 500
