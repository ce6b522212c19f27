"""The OpenAPI document: FastAPI's, plus the shapes that routes read and write by themselves."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api.authentication import OPEN
from api.job_request import JobRequest
from api.problems import ProblemBody, openapi_responses

_REF = "#/components/schemas/{model}"


def body_of(model: str) -> dict[str, Any]:
    """`openapi_extra=` for a route whose JSON body is `model`, one of those that `install` adds."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}
    return {"requestBody": {"required": True, "content": content}}


def install(app: FastAPI) -> None:
    """Replaces `app.openapi`; the document is built once, at its first use."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, shapes = models_json_schema(
                [(JobRequest, "validation"), (ProblemBody, "serialization")], by_alias=True, ref_template=_REF
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(shapes["$defs"])
            _drop_validation_errors(schema)
            _name_the_key(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _name_the_key(schema: dict[str, Any]) -> None:
    """Every operation but the open ones takes a key, where there are keys."""
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in schema["paths"].items():
        for operation in operations.values() if path not in OPEN else ():
            operation["security"] = [{"key": []}, {}]
            operation["responses"] |= {str(status): shape for status, shape in openapi_responses(401).items()}


def _drop_validation_errors(schema: dict[str, Any]) -> None:
    """FastAPI says of every route with a parameter that it may answer 422 in a shape of its own. Errors are problems
    here, and a path's text cannot be invalid."""
    for path in schema["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in json.dumps(operation["responses"].get("422", {})):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
