"""One attempt to deliver one webhook: sign, look up, check, connect to the checked address, judge the answer.

Knows HTTP and nothing of Redis. The body of the answer is never read and redirects are never followed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from standardwebhooks import Webhook

from engine.version import __version__
from worker.addresses import AddressRefused, Target, check_url, resolve
from worker.settings import Settings

CONNECT_TIMEOUT_S = 5.0  # per address, so that a second address gets its turn within an attempt
MAX_RETRY_AFTER_S = 86400.0  # a longer wish is cut, so that a delivery ends before it is forgotten


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. `kind` is a label of `webhook_attempts_total`; `retry_after_s` is the endpoint's wish."""

    kind: str
    status: int | None = None
    retry_after_s: float = 0.0


class Poster:
    """Posts webhooks. `ssl_context`: whom to trust; by default the usual authorities, or those of SSL_CERT_FILE."""

    def __init__(self, settings: Settings, ssl_context: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        # The bare transport: no cookies, redirects, proxies or environment. No connection is used twice, because one to
        # the same address may have been opened, and its certificate checked, for another host name.
        self._transport = httpx.AsyncHTTPTransport(
            verify=ssl_context or httpx.create_ssl_context(),
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        await self._transport.aclose()

    async def post(self, url: str, webhook_id: str, body: str, secret: str) -> Outcome:
        """Signs and sends `body` once. `secret` may be several, separated by spaces, while they are being rotated.

        Never raises for what the endpoint, its name or the network does.
        """
        try:
            target = check_url(url, self._settings)
            # One limit over look-up, connection and answer: an endpoint that sends a byte a second is dead, too.
            async with asyncio.timeout(self._settings.webhook_timeout_s):
                return await self._send(target, await resolve(target), _headers(webhook_id, body, secret), body)
        except AddressRefused:
            return Outcome("address_refused")
        except (TimeoutError, httpx.TimeoutException):
            return Outcome("timeout")
        except (httpx.TransportError, OSError, UnicodeError):
            return Outcome("unreachable")

    async def _send(self, target: Target, addresses: tuple[str, ...], headers: dict[str, str], body: str) -> Outcome:
        failure: Exception = OSError("the host has no address")
        for address in addresses:
            request = httpx.Request(
                "POST",
                target.url.copy_with(host=address),
                headers={"Host": target.url.netloc.decode("ascii"), **headers},
                content=body.encode(),
                extensions={
                    "sni_hostname": target.host,  # also the name that the certificate must bear
                    "timeout": {"connect": min(CONNECT_TIMEOUT_S, self._settings.webhook_timeout_s)},
                },
            )
            try:
                response = await self._transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error  # nothing was sent yet: the next address may do
                continue
            await response.aclose()
            return _judge(response)
        raise failure


def _headers(webhook_id: str, body: str, secret: str) -> dict[str, str]:
    now = datetime.now(UTC)
    return {
        "Content-Type": "application/json",
        "User-Agent": f"fieldcast/{__version__}",
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(key).sign(webhook_id, now, body) for key in secret.split()),
    }


def _judge(response: httpx.Response) -> Outcome:
    status = response.status_code
    if 200 <= status < 300:
        return Outcome("succeeded", status)
    if status == 410:
        return Outcome("gone", status)
    kind = "redirect" if 300 <= status < 400 else "http_error"
    return Outcome(kind, status, retry_after_s(response.headers.get("retry-after")))


def retry_after_s(header: str | None, now: float | None = None) -> float:
    """Seconds that a Retry-After header (a number, or an HTTP date) asks for; 0 when it asks for nothing readable."""
    if header is None:
        return 0.0
    if header.strip().isascii() and header.strip().isdigit():
        wish = float(header)
    else:
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return 0.0
        aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        wish = aware.timestamp() - (time.time() if now is None else now)
    return min(max(wish, 0.0), MAX_RETRY_AFTER_S)
