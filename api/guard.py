"""The outermost check of every request, and the last stop of every unforeseen error. Imports api.problems only.

Without API keys, what protects a service on loopback from the web pages that its user visits is this:
- a page whose own name was re-pointed at 127.0.0.1 (DNS rebinding) sends that name as Host: refused;
- a page of another site sends its Origin, or Sec-Fetch-Site, with a POST: refused;
- a JSON content type is asked of every body (api/body.py), and no CORS header is ever sent.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import ProblemError, unexpected

# Docker Desktop's name for the host's loopback, by which a Prometheus in a container scrapes; no web page can own it.
LOCAL_NAMES = {"localhost", "host.docker.internal"}
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/\\\s]+)(?::\d{1,5})?", re.IGNORECASE)


class Guard:
    """ASGI middleware. `loopback_only`: the service is bound to loopback, so only loopback names may reach it."""

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self.app = app
        self.loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal:
                raise refusal
            await self.app(scope, receive, watched_send)
        except ProblemError as problem:
            await problem.response()(scope, receive, send)
        except Exception as error:
            answer = unexpected(error).response()
            if started:  # half an answer is out: breaking the connection is the only way left to say so
                raise RuntimeError("the answer broke off") from None
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ProblemError | None:
        headers = Headers(scope=scope)
        host = headers.get("host")
        if self.loopback_only and host is not None and not is_local(host):
            return ProblemError(
                403, "host_not_allowed", "this service answers only to localhost and loopback addresses"
            )
        if scope["method"] in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        foreign = origin is not None and _authority(origin) != (host or "").lower()
        if foreign or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return ProblemError(403, "cross_site_request", "requests from other sites' pages are refused")
        return None


def is_local(host: str) -> bool:
    """Whether a Host header's value (name or address, with or without port) means this machine's loopback."""
    found = _HOST.fullmatch(host)
    if not found:
        return False
    name = found[1].strip("[]").lower().rstrip(".")
    if name in LOCAL_NAMES or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
