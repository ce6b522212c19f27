"""One attempt: signed, to the checked address, under the original name, and judged by its status alone."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from service import CERTIFICATE
from standardwebhooks import Webhook, WebhookVerificationError
from webhook_receiver import SECRET, Receiver

from worker.settings import Settings
from worker.webhook_post import MAX_RETRY_AFTER_S, Outcome, Poster, retry_after_s

BODY = json.dumps({"type": "job.completed", "data": {"text": "naïve ✓ ı"}}, ensure_ascii=False)
OTHER_SECRET = "whsec_" + "b3RoZXItc2VjcmV0LW90aGVyLXNlY3JldA=="


class NamedHosts(asyncio.SelectorEventLoop):
    """An event loop whose resolver knows the test's names, and counts how often it is asked."""

    addresses: tuple[str, ...] = ("127.0.0.1",)
    lookups = 0

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        if str(host).endswith(".test"):
            self.lookups += 1
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in self.addresses]
        return await super().getaddrinfo(host, port, **hints)


def post(
    settings: Settings,
    url: str,
    secret: str = SECRET,
    loop: NamedHosts | None = None,
    trust: ssl.SSLContext | None = None,
) -> Outcome:
    async def once() -> Outcome:
        poster = Poster(settings, trust)
        try:
            return await poster.post(url, "msg_1", BODY, secret)
        finally:
            await poster.close()

    with asyncio.Runner(loop_factory=lambda: loop or NamedHosts()) as runner:
        return runner.run(once())


def test_an_attempt_verifies_by_the_standard(receiver: Receiver, settings_for: Callable[..., Settings]) -> None:
    before = int(time.time())
    assert post(settings_for(receiver), receiver.url(path="/a?b=c")) == Outcome("succeeded", 200)
    (request,) = receiver.received
    assert Webhook(SECRET).verify(request.body, request.headers) == json.loads(BODY)
    assert request.path == "/a?b=c"
    assert request.headers["webhook-id"] == "msg_1"
    assert request.headers["content-type"] == "application/json"
    assert before <= int(request.headers["webhook-timestamp"]) <= time.time()
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER_SECRET).verify(request.body, request.headers)


def test_while_secrets_are_rotated_both_verify(receiver: Receiver, settings_for: Callable[..., Settings]) -> None:
    post(settings_for(receiver), receiver.url(), f"{OTHER_SECRET} {SECRET}")
    (request,) = receiver.received
    for secret in (SECRET, OTHER_SECRET):
        Webhook(secret).verify(request.body, request.headers)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "succeeded"), (204, "succeeded"), (400, "http_error"), (410, "gone"), (500, "http_error")]
    + [(s, "redirect") for s in (301, 302, 303, 307, 308)],
)
def test_only_2xx_is_success_and_redirects_are_not_followed(
    status: int, kind: str, start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings]
) -> None:
    elsewhere = start_receiver(200)
    receiver = start_receiver((status, {"location": elsewhere.url()}))
    assert post(settings_for(receiver, elsewhere), receiver.url()) == Outcome(kind, status)
    assert len(receiver.received) == 1
    assert elsewhere.received == []


def test_a_silent_endpoint_times_out(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings]
) -> None:
    receiver = start_receiver("hang")
    assert post(settings_for(receiver, webhook_timeout_s=0.2), receiver.url()).kind == "timeout"


def test_a_closed_port_and_an_unknown_name_are_unreachable(
    receiver: Receiver, settings_for: Callable[..., Settings]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        receiver.port = unused.getsockname()[1]
        assert post(settings_for(receiver), receiver.url()).kind == "unreachable"


def test_a_refused_address_is_not_connected_to(receiver: Receiver, settings_for: Callable[..., Settings]) -> None:
    settings = settings_for(receiver, webhook_allowed_private_hosts=())
    loop = NamedHosts()
    assert post(settings, receiver.url()).kind == "address_refused"
    assert post(settings, receiver.url("hooks.fieldcast.test"), loop=loop).kind == "address_refused"
    assert loop.lookups == 1
    assert receiver.received == []


def test_one_refused_address_among_public_ones_refuses_the_host(
    receiver: Receiver, settings_for: Callable[..., Settings]
) -> None:
    loop = NamedHosts()
    loop.addresses = ("8.8.8.8", "127.0.0.1")
    settings = settings_for(receiver, webhook_allowed_private_hosts=())
    assert post(settings, receiver.url("hooks.fieldcast.test"), loop=loop).kind == "address_refused"


def test_the_checked_address_is_connected_to_under_the_original_name(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings]
) -> None:
    receiver = start_receiver(200, tls=True)
    loop = NamedHosts()
    trust = ssl.create_default_context(cafile=CERTIFICATE)
    settings = settings_for(receiver, webhook_allow_http=False)
    assert post(settings, receiver.url("hooks.fieldcast.test"), loop=loop, trust=trust).kind == "succeeded"
    assert loop.lookups == 1  # a second look-up could give another address than the one that was checked
    assert receiver.server_names == ["hooks.fieldcast.test"]
    assert receiver.received[0].headers["host"] == f"hooks.fieldcast.test:{receiver.port}"


def test_a_certificate_for_another_name_is_refused(
    start_receiver: Callable[..., Receiver], settings_for: Callable[..., Settings]
) -> None:
    receiver = start_receiver(200, tls=True)
    trust = ssl.create_default_context(cafile=CERTIFICATE)
    settings = settings_for(receiver, webhook_allowed_private_hosts=("localhost",))
    assert post(settings, receiver.url("localhost"), trust=trust).kind == "unreachable"
    assert receiver.received == []


def test_the_next_address_is_tried_when_one_refuses(receiver: Receiver, settings_for: Callable[..., Settings]) -> None:
    loop = NamedHosts()
    loop.addresses = ("::1", "127.0.0.1")  # the receiver listens on the second only
    assert post(settings_for(receiver), receiver.url("hooks.fieldcast.test"), loop=loop).kind == "succeeded"


def test_retry_after_is_read_in_both_forms() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    date = format_datetime(datetime(2026, 1, 1, 0, 2, tzinfo=UTC), usegmt=True)
    assert retry_after_s(date, now) == 120
    for header, wish in ((None, 0), ("30", 30), ("soon", 0), ("-1", 0), ("1e9", 0), ("9" * 20, MAX_RETRY_AFTER_S)):
        assert retry_after_s(header, now) == wish
