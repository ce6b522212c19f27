"""Errors that nobody foresaw: told as a problem, logged by their place, never by their message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from redis.exceptions import OutOfMemoryError, ResponseError

from api import problems
from api.guard import Guard
from api.problems import MAX_ERRORS, FieldError, Invalid
from engine.errors import ContextTooLong, OptionsError, Problem, SchemaError

SECRET_TEXT = "the patient's name"
ERRORS = {
    "bug": RuntimeError(SECRET_TEXT),
    "engine": ContextTooLong(5, 4, 3),
    "schema": SchemaError([Problem(("f", 1), "is wrong")]),
    "options": OptionsError("temperature is 0"),
    "full": OutOfMemoryError("OOM command not allowed"),
    "reply": ResponseError(SECRET_TEXT),
}


@pytest.fixture
def app() -> FastAPI:
    """An application of the test's own whose routes only raise, behind the real handlers and guard."""
    app = FastAPI()
    problems.install(app)
    app.add_middleware(Guard, loopback_only=True)

    @app.get("/raise/{name}")
    async def fail(name: str) -> None:
        raise ERRORS[name]

    @app.get("/typed")
    async def typed(number: int) -> int:
        return number

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def half() -> AsyncIterator[bytes]:
            yield b"half"
            raise RuntimeError(SECRET_TEXT)

        return StreamingResponse(half())

    return app


@pytest.fixture
def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("bug", 500, "internal_error"),
        ("engine", 500, "internal_error"),
        ("schema", 422, "invalid_schema"),
        ("options", 422, "invalid_options"),
        ("full", 503, "redis_unavailable"),
        ("reply", 500, "internal_error"),
    ],
)
async def test_each_error_has_its_problem(
    client: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], name: str, status: int, kind: str
) -> None:
    answer = await client.get(f"/raise/{name}")
    assert (answer.status_code, answer.json()["type"]) == (status, kind)
    assert answer.headers["content-type"] == "application/problem+json"
    captured = capfd.readouterr()
    assert SECRET_TEXT not in answer.text + captured.out + captured.err
    assert status != 500 or "test_problems.py:" in captured.out + captured.err


@pytest.mark.anyio
async def test_a_parameter_of_the_wrong_type_is_422(client: httpx.AsyncClient) -> None:
    answer = await client.get("/typed", params={"number": "ten"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["query", "number"]


@pytest.mark.anyio
async def test_an_answer_that_breaks_off_is_not_repaired(client: httpx.AsyncClient) -> None:
    with pytest.raises(RuntimeError, match="the answer broke off"):
        await client.get("/stream")


def test_a_problem_is_bounded_and_always_encodable() -> None:
    errors = [FieldError(("body", "x" * 100_000, n, "\ud800"), "\udfff" * 100_000) for n in range(1000)]
    body = Invalid(errors).response().body
    assert len(json.loads(body)["errors"]) == MAX_ERRORS
    assert len(body) < 2_000_000
