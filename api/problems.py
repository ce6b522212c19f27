"""The one place where errors become `application/problem+json` (RFC 9457). Imports no other module of the API.

Routes raise `ProblemError` (or let an engine or Redis error pass); nothing else in the API builds an error answer.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from redis.exceptions import OutOfMemoryError, RedisError
from starlette.exceptions import HTTPException
from structlog import get_logger

from engine.errors import FieldcastError, OptionsError, SchemaError
from worker.connection import is_unavailable

log = get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2  # told to clients when Redis cannot be reached
MAX_ERRORS = 100  # listed in one answer; a schema may break a rule at thousands of places
MAX_MSG_CHARACTERS = 1000

TITLES = {
    400: "Malformed request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Request body too large",
    415: "Unsupported media type",
    422: "Invalid request",
    429: "Too many requests",
    500: "Internal error",
    503: "Service unavailable",
}


@dataclass(frozen=True)
class FieldError:
    """One thing wrong at one place of the request, such as ("body", "schema", "priority", "choices")."""

    loc: tuple[str | int, ...]
    msg: str

    def to_dict(self) -> dict[str, Any]:
        return {"loc": [_shortened(p) if isinstance(p, str) else p for p in self.loc], "msg": _shortened(self.msg)}


class ProblemError(Exception):
    """An answer that is not the asked-for one. `type` is a stable word that clients can match on."""

    def __init__(
        self,
        status: int,
        type: str,
        detail: str,
        *,
        errors: Iterable[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.status = status
        self.type = type
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})
        super().__init__(f"{status} {type}")

    def to_dict(self) -> dict[str, Any]:
        shape: dict[str, Any] = {
            "type": self.type,
            "title": TITLES.get(self.status, "Error"),
            "status": self.status,
            "detail": _shortened(self.detail),
        }
        if self.errors:
            shape["errors"] = [e.to_dict() for e in self.errors[:MAX_ERRORS]]
        return {**self.extra, **shape}

    def response(self) -> Response:
        # ASCII escapes, because a message may quote half of a surrogate pair, which UTF-8 cannot encode.
        body = json.dumps(self.to_dict(), ensure_ascii=True, allow_nan=False)
        return Response(body, self.status, headers=self.headers, media_type=MEDIA_TYPE)


class Invalid(ProblemError):
    """422: the request is well-formed but breaks rules; `errors` names each place."""

    def __init__(self, errors: Iterable[FieldError], *, type: str = "invalid_request") -> None:
        found = tuple(errors)
        places = "one thing is" if len(found) == 1 else f"{len(found)} things are"
        super().__init__(422, type, f"{places} wrong with the request; see errors", errors=found)


def from_schema_error(error: SchemaError, loc: tuple[str | int, ...]) -> Invalid:
    """The schema's own problems, each at its place under `loc`."""
    return Invalid((FieldError((*loc, *p.loc), p.msg) for p in error.problems), type=error.type)


def from_validation(errors: Iterable[Mapping[str, Any]], loc: tuple[str | int, ...] = ()) -> Invalid:
    """Pydantic's error list; its input values are left out, because they may hold document text."""
    return Invalid(FieldError((*loc, *e["loc"]), str(e["msg"]).removeprefix("Value error, ")) for e in errors)


def job_not_found() -> ProblemError:
    """404, for a job that is not there and for one of another tenant."""
    return ProblemError(404, "job_not_found", "there is no such job, or its result has expired")


class ProblemBody(BaseModel):
    """The shape of every error answer, for the OpenAPI document."""

    class Error(BaseModel):
        loc: list[str | int]
        msg: str

    type: str = Field(description="A stable word to match on.")
    title: str
    status: int
    detail: str
    errors: list[Error] = Field(default=[], description="What is wrong, place by place.")


def openapi_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` for a route: these statuses answer with a problem."""
    return {
        status: {
            "description": TITLES[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
        }
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Makes every error of `app` a problem."""
    handlers: dict[type[Exception], Callable[[Any], ProblemError]] = {
        ProblemError: lambda error: error,
        HTTPException: _from_http_exception,
        RequestValidationError: lambda error: from_validation(error.errors()),
        SchemaError: lambda error: from_schema_error(error, ("body", "schema")),
        OptionsError: lambda error: Invalid([FieldError(("body", "options"), str(error))], type=error.type),
        FieldcastError: unexpected,
        RedisError: _from_redis,
    }
    for kind, convert in handlers.items():
        app.add_exception_handler(kind, _handler(convert))


def unexpected(error: Exception) -> ProblemError:
    """500 for an error nobody foresaw. Its message is neither sent nor logged: it may quote the document."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    log.error("unexpected error", action="request_error", error=type(error).__qualname__, frames=frames[-8:])
    return ProblemError(500, "internal_error", "the request could not be handled; the log has the place of the error")


def _handler(convert: Callable[[Any], ProblemError]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        return convert(error).response()

    return handle


def _from_http_exception(error: HTTPException) -> ProblemError:
    words = {400: "malformed", 404: "not_found", 405: "method_not_allowed"}
    kind = words.get(error.status_code, "http_error")
    return ProblemError(error.status_code, kind, str(error.detail), headers=error.headers)


def _from_redis(error: RedisError) -> ProblemError:
    if not isinstance(error, OutOfMemoryError) and not is_unavailable(error):
        return unexpected(error)
    log.warning("redis unavailable", action="redis_unavailable", error=type(error).__name__)
    retry = {"Retry-After": str(RETRY_AFTER_S)}
    return ProblemError(503, "redis_unavailable", "the job store cannot be reached; try again shortly", headers=retry)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MSG_CHARACTERS else text[: MAX_MSG_CHARACTERS - 1] + "…"
