"""Reads a request's JSON body strictly. Imports api.problems and engine.schema only.

Python's reader is lenient where JSON is not: it takes NaN, keeps the last of two equal keys, guesses UTF-16, and fails
in its own ways on deep nesting and huge numbers. Each of these is refused here, and the size while it is being read.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from api.problems import FieldError, Invalid, ProblemError, from_validation
from engine.schema import text_problem

MAX_DEPTH = 64  # of nested arrays and objects
DISCARDED_BODIES = 8  # so many times the limit is still read and dropped, so that the client sees the 413

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")

Model = TypeVar("Model", bound=BaseModel)
Loc = tuple[str | int, ...]


class _DuplicateKeys(dict[str, Any]):
    """An object that named a key twice; `duplicates` are those keys."""

    duplicates: list[str]


async def read_model(request: Request, model: type[Model], max_bytes: int) -> Model:
    """The body as `model`. Raises `ProblemError` with 400, 413, 415 or 422."""
    value = await read_json(request, max_bytes)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False, include_input=False), ("body",)) from None


async def read_json(request: Request, max_bytes: int) -> Any:
    """The body as plain Python values. Raises `ProblemError` with 400, 413, 415 or 422."""
    _check_media_type(request)
    return parse_json(await _read_bytes(request, max_bytes))


def parse_json(body: bytes) -> Any:
    """Strict UTF-8 JSON. Raises `ProblemError` with 400 (not JSON) or 422 (JSON that cannot be used)."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float, parse_int=_int
        )
    except json.JSONDecodeError as error:
        raise _malformed(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    # Decoding has refused raw surrogates, so only a \uD800 to \uDFFF escape can have made one.
    problems = list(_text_problems(value, check_text=_SURROGATE_ESCAPE.search(text) is not None))
    if problems:
        raise Invalid(problems)
    return value


def _check_media_type(request: Request) -> None:
    media, *parameters = (part.strip() for part in request.headers.get("content-type", "").lower().split(";"))
    charsets = [p.partition("=")[2].strip(' "') for p in parameters if p.startswith("charset")]
    if media != "application/json" or not set(charsets) <= {"utf-8", "utf8", "us-ascii"}:
        raise ProblemError(415, "unsupported_media_type", "send the body as Content-Type: application/json in UTF-8")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ProblemError(415, "unsupported_encoding", "send the body without Content-Encoding")


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    too_large = declared.isdecimal() and (len(declared) > 18 or int(declared) > max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                too_large = True
                chunks.clear()
            elif not too_large:
                chunks.append(chunk)
            if size > DISCARDED_BODIES * max_bytes:
                break
    except ClientDisconnect:
        raise ProblemError(400, "incomplete_body", "the connection ended before the body did") from None
    if too_large:
        raise ProblemError(413, "body_too_large", f"the body is over {max_bytes} bytes")
    return b"".join(chunks)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    marked = _DuplicateKeys(members)
    marked.duplicates = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
    return marked


def _text_problems(value: Any, *, check_text: bool) -> Iterator[FieldError]:
    """Repeated keys and, with `check_text`, strings that are not valid Unicode. Walks without recursion."""
    inner = (str, list, dict) if check_text else (list, dict)
    stack: list[tuple[Loc, Any]] = [(("body",), value)]
    while stack:
        loc, node = stack.pop()
        if len(loc) > MAX_DEPTH and not isinstance(node, str):
            raise _too_deep()
        if isinstance(node, str):
            if problem := text_problem(node):
                yield FieldError(loc, problem)
        elif isinstance(node, list):
            stack += [((*loc, index), item) for index, item in enumerate(node) if isinstance(item, inner)]
        elif isinstance(node, dict):
            if isinstance(node, _DuplicateKeys):
                yield from (FieldError((*loc, key), "is given twice") for key in node.duplicates)
            if check_text:
                yield from (FieldError((*loc, key), problem) for key in node if (problem := text_problem(key)))
            stack += [((*loc, key), item) for key, item in node.items() if isinstance(item, inner)]


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _malformed("the body holds a number that is too large")
    return value


def _int(digits: str) -> int:
    if len(digits) > 300:  # Python refuses over 4300 digits with a plain ValueError, and no field needs this many
        raise _malformed("the body holds a number that is too large")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise _malformed(f"the body is not JSON: {name} is not a JSON value")


def _malformed(detail: str) -> ProblemError:
    return ProblemError(400, "malformed_json", detail)


def _too_deep() -> ProblemError:
    return _malformed(f"the body nests arrays and objects more than {MAX_DEPTH} deep")
