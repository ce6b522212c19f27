"""`POST /v1/jobs`: what is taken, and what is refused with which error. Nothing refused reaches the queue."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from worker import status
from worker.settings import Settings

pytestmark = pytest.mark.anyio

CONTEXT = "The app crashed twice and I want my money back."
FIELD = {"type": "enum", "choices": ["high", "low"]}
SCHEMA = {"priority": FIELD, "angry": {"type": "boolean", "description": "Is the writer angry?"}}
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
HOOK = {"url": "https://hooks.fieldcast.dev/in", "secret": SECRET}


@pytest.fixture(autouse=True)
async def only_what_is_taken_is_stored(client: httpx.AsyncClient, redis: Redis) -> AsyncIterator[None]:
    """Of every test in this file: what is refused leaves nothing that could reach a worker."""
    taken = 0

    async def count(answer: httpx.Response) -> None:
        nonlocal taken
        taken += answer.status_code == 202

    client.event_hooks = {"response": [count]}
    yield
    assert (await status.queue_depth(redis)).queued == taken
    assert taken or await redis.dbsize() == 0


def body(**changes: Any) -> dict[str, Any]:
    return {"context": CONTEXT, "schema": SCHEMA, **changes}


async def assert_refused(
    answer: httpx.Response, status_code: int, kind: str, locs: list[list[str | int]] | None = None
) -> dict[str, Any]:
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["type"]) == (status_code, kind), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == status_code
    assert problem["title"]
    assert problem["detail"]
    if locs is not None:
        assert [error["loc"] for error in problem["errors"]] == locs, problem
    return problem


async def test_a_job_is_taken_at_once(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/jobs", json=body(metadata={"ticket": "42"}))
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert (job["object"], job["status"], job["metadata"]) == ("job", "queued", {"ticket": "42"})
    assert job["result"] is None
    assert job["error"] is None
    assert job["links"]["self"] == f"/v1/jobs/{job['id']}"


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": None, "preset": "support_triage"},
        {"options": {"layout": "joint", "scoring": "branch", "temperature": 2, "top_k": 1, "min_confidence": 0}},
        {"options": {"truncate": "tail", "prior": False, "show_choices": True}},
        {"priority": "interactive", "timeout_s": 1, "result_ttl_s": 60},
        {"webhook": HOOK},
        {"webhook": {**HOOK, "events": ["job.failed"]}},
        {"context": "<|im_end|> 😀 ı \u0000 \\ud800"},
    ],
)
async def test_what_the_contract_allows_is_taken(client: httpx.AsyncClient, changes: dict[str, Any]) -> None:
    answer = await client.post("/v1/jobs", json=body(**changes))
    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize(
    ("changes", "locs"),
    [
        ({"context": None}, [["body", "context"]]),
        ({"context": ""}, [["body", "context"]]),
        ({"context": 5}, [["body", "context"]]),
        ({"schema": None}, [["body"]]),
        ({"preset": "support_triage"}, [["body"]]),
        ({"color": "red"}, [["body", "color"]]),
        ({"options": {"layout": "sideways"}}, [["body", "options", "layout"]]),
        ({"options": {"scoring": None}}, [["body", "options", "scoring"]]),
        ({"options": {"temperature": 0}}, [["body", "options", "temperature"]]),
        ({"options": {"temperature": "1"}}, [["body", "options", "temperature"]]),
        ({"options": {"temperature": True}}, [["body", "options", "temperature"]]),
        ({"options": {"top_k": 256}}, [["body", "options", "top_k"]]),
        ({"options": {"top_k": 1.5}}, [["body", "options", "top_k"]]),
        ({"options": {"min_confidence": 1.1}}, [["body", "options", "min_confidence"]]),
        ({"options": {"beam": 4}}, [["body", "options", "beam"]]),
        ({"options": []}, [["body", "options"]]),
        ({"priority": "urgent"}, [["body", "priority"]]),
        ({"timeout_s": 0}, [["body", "timeout_s"]]),
        ({"result_ttl_s": -1}, [["body", "result_ttl_s"]]),
        ({"metadata": {"a": 1}}, [["body", "metadata", "a"]]),
        ({"metadata": {"a": "x" * 1000}}, [["body", "metadata"]]),
        ({"metadata": {str(n): "" for n in range(17)}}, [["body", "metadata"]]),
        ({"webhook": {**HOOK, "secret": 5}}, [["body", "webhook", "secret"]]),
        ({"webhook": {**HOOK, "events": ["job.exploded"]}}, [["body", "webhook", "events", 0]]),
        ({"webhook": {**HOOK, "events": []}}, [["body", "webhook", "events"]]),
    ],
)
async def test_a_bad_value_is_named(
    client: httpx.AsyncClient, changes: dict[str, Any], locs: list[list[str | int]]
) -> None:
    await assert_refused(await client.post("/v1/jobs", json=body(**changes)), 422, "invalid_request", locs)


@pytest.mark.parametrize(
    ("schema", "loc"),
    [
        ({}, []),
        ({f"f{n}": {"type": "boolean"} for n in range(401)}, []),
        ({"f": {"type": "string"}}, ["f", "type"]),
        ({"f": {"type": "colour"}}, ["f", "type"]),
        ({"f": {"type": []}}, ["f", "type"]),
        ({"f": {}}, ["f", "type"]),
        ({"f": "boolean"}, ["f"]),
        ({"f": {"type": "enum"}}, ["f", "choices"]),
        ({"f": {"type": "enum", "choices": ["one"]}}, ["f", "choices"]),
        ({"f": {"type": "enum", "choices": [str(n) for n in range(256)]}}, ["f", "choices"]),
        ({"f": {"type": "enum", "choices": ["a", ""]}}, ["f", "choices", 1]),
        ({"f": {"type": "enum", "choices": ["a", "x" * 513]}}, ["f", "choices", 1]),
        ({"f": {"type": "enum", "choices": ["a", {"b": 1}]}}, ["f", "choices", 1]),
        ({"f": {"type": "enum", "choices": ["\u00e9", "e\u0301"]}}, ["f", "choices"]),
        ({"f": {"type": "score", "levels": {"a": "", "b": ""}}}, ["f", "levels"]),
        ({"a\u0007": {"type": "boolean"}}, ["a\u0007"]),
        ({" ": {"type": "boolean"}}, [" "]),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
async def test_a_bad_schema_is_named_field_by_field(
    client: httpx.AsyncClient, schema: dict[str, Any], loc: list[str | int]
) -> None:
    answer = await client.post("/v1/jobs", json=body(schema=schema))
    await assert_refused(answer, 422, "invalid_schema", [["body", "schema", *loc]])


async def test_an_open_ended_field_is_refused_as_what_it_is(client: httpx.AsyncClient) -> None:
    schema = {**SCHEMA, "summary": {"type": "string"}}
    problem = await assert_refused(
        await client.post("/v1/jobs", json=body(schema=schema)),
        422,
        "invalid_schema",
        [["body", "schema", "summary", "type"]],
    )
    assert "open-ended" in problem["errors"][0]["msg"]


async def test_an_unknown_preset_is_refused_with_the_known_ones(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/jobs", json={"context": CONTEXT, "preset": "../../etc/passwd"})
    problem = await assert_refused(answer, 422, "unknown_preset", [["body", "preset"]])
    assert "support_triage" in problem["errors"][0]["msg"]


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.fieldcast.dev/in",
        "ftp://hooks.fieldcast.dev/in",
        "https://127.0.0.1/in",
        "https://[::1]/in",
        "https://10.0.0.8/in",
        "https://169.254.169.254/latest",
        "https://localhost/in",
        "https://hooks.fieldcast.dev:22/in",
        "https://",
        "nonsense",
        "https://[",
        "https://user:pass@hooks.fieldcast.dev/in",
    ],
)
async def test_a_webhook_address_that_is_not_public_is_refused(client: httpx.AsyncClient, url: str) -> None:
    answer = await client.post("/v1/jobs", json=body(webhook={**HOOK, "url": url}))
    await assert_refused(answer, 422, "invalid_webhook", [["body", "webhook", "url"]])


@pytest.mark.parametrize("secret", ["abc", "whsec_" + "A" * 8, "whsec_!", SECRET.removeprefix("whsec_"), SECRET * 4])
async def test_a_secret_that_cannot_sign_is_refused_and_not_repeated(client: httpx.AsyncClient, secret: str) -> None:
    answer = await client.post("/v1/jobs", json=body(webhook={**HOOK, "secret": secret}))
    await assert_refused(answer, 422, "invalid_webhook", [["body", "webhook", "secret"]])
    assert secret not in answer.text


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"context": NaN}', b"\xff"])
async def test_what_is_not_json_is_400(client: httpx.AsyncClient, content: bytes) -> None:
    answer = await client.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    await assert_refused(answer, 400, "malformed_json")


@pytest.mark.parametrize("content", [b"[]", b"null", b'"text"', b"3"])
async def test_a_body_that_is_no_object_is_422(client: httpx.AsyncClient, content: bytes) -> None:
    answer = await client.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    await assert_refused(answer, 422, "invalid_request", [["body"]])


async def test_a_field_given_twice_is_refused(client: httpx.AsyncClient) -> None:
    content = b'{"context": "x", "schema": {"f": {"type": "boolean"}, "f": {"type": "boolean"}}}'
    answer = await client.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    await assert_refused(answer, 422, "invalid_request", [["body", "schema", "f"]])


async def test_half_a_surrogate_pair_is_refused(client: httpx.AsyncClient) -> None:
    content = json.dumps(body(context="a\ud800")).encode()
    answer = await client.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    await assert_refused(answer, 422, "invalid_request", [["body", "context"]])


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": ""},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_another_media_type_is_415(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await client.post("/v1/jobs", content=json.dumps(body()).encode(), headers=headers)
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_declared_body_over_the_limit_is_413(client: httpx.AsyncClient, settings: Settings) -> None:
    answer = await client.post("/v1/jobs", json=body(context="x" * settings.max_body_bytes))
    await assert_refused(answer, 413, "body_too_large")


async def test_an_undeclared_body_over_the_limit_is_413_and_not_read_to_its_end(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    answer = await client.post("/v1/jobs", content=endless(), headers={"content-type": "application/json"})
    await assert_refused(answer, 413, "body_too_large")
    assert sent < 10 * settings.max_body_bytes


async def test_a_body_at_the_limit_is_taken(client: httpx.AsyncClient, settings: Settings) -> None:
    room = settings.max_body_bytes - len(json.dumps(body(context="")))
    content = json.dumps(body(context="x" * room)).encode()
    assert len(content) == settings.max_body_bytes
    answer = await client.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 202


async def test_pages_of_other_sites_are_refused(client: httpx.AsyncClient) -> None:
    for headers in (
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = await client.post("/v1/jobs", json=body(), headers=headers)
        assert answer.status_code == 403, headers
        assert "access-control-allow-origin" not in answer.headers
    assert (await client.get("/v1/presets", headers={"host": "evil.example"})).status_code == 403
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert (await client.post("/v1/jobs", json=body(), headers=own)).status_code == 202


async def test_logs_hold_no_document_text(
    client: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    for changes in (
        {},
        {"color": CONTEXT},
        {"schema": {CONTEXT: {"type": CONTEXT}}},
        {"webhook": {**HOOK, "url": CONTEXT}},
    ):
        await client.post("/v1/jobs", json=body(**changes))
    await client.post("/v1/jobs", content=CONTEXT.encode(), headers={"content-type": "application/json"})
    captured = capfd.readouterr()
    assert "submit_job" in captured.out + captured.err + caplog.text
    assert "money back" not in captured.out + captured.err + caplog.text
