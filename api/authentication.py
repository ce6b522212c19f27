"""Whose request it is: `Authorization: Bearer <key>`. Knows api.keys and api.problems.

Middleware, so that no route can forget it: every path but those in OPEN needs a key as soon as there is a file of them.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.keys import ApiKeys
from api.problems import ProblemError
from worker.tenants import DEFAULT

OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})  # what probes and client generators read without a key
CHALLENGE = 'Bearer realm="fieldcast"'


class Authentication:
    """ASGI middleware: puts the tenant's name into the request's state, or raises a 401 `ProblemError`."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            scope.setdefault("state", {})["tenant"] = self._tenant(Headers(scope=scope))
        await self._app(scope, receive, send)

    def _tenant(self, headers: Headers) -> str:
        self._keys.refresh()
        if not self._keys.required:
            return DEFAULT
        given = headers.getlist("authorization")
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not key.strip():
            detail = "this service asks for a key: send the header Authorization: Bearer <key>"
            raise ProblemError(401, "key_missing", detail, headers={"WWW-Authenticate": CHALLENGE})
        tenant = self._keys.tenant_of(key.strip())
        if tenant is None:
            challenge = f'{CHALLENGE}, error="invalid_token"'
            raise ProblemError(401, "key_unknown", "the key is unknown here", headers={"WWW-Authenticate": challenge})
        return tenant
