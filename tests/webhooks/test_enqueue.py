"""A delivery exists exactly when its job's end does; a webhook that could not be signed or sent is refused early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import redis
from redis.asyncio import Redis
from webhook_receiver import SECRET

from worker.deliveries import WebhookInvalid, check_webhook, enqueue, pending, secret_problem
from worker.jobs import Webhook
from worker.settings import Settings

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

URL = "https://example.com/hook"


def test_enqueue_is_part_of_the_caller_s_transaction(valkey: EmbeddedValkey) -> None:
    with redis.Redis.from_url(valkey.url) as connection:
        with connection.pipeline(transaction=True) as pipeline:
            enqueue(pipeline, "job-1", "job.completed", URL, SECRET)
            assert connection.dbsize() == 0
            pipeline.execute()
        with connection.pipeline(transaction=True) as pipeline:
            enqueue(pipeline, "job-1", "job.completed", URL, SECRET)
            enqueue(pipeline, "job-2", "job.failed", URL, SECRET)
            pipeline.execute()

    async def count() -> int:
        async with Redis.from_url(valkey.url) as connection:
            return await pending(connection)

    assert asyncio.run(count()) == 2


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0",
        "whsec_c2hvcnQ=",
        "whsec_not base64!",
        "whsec_" + "QUFB" * 30,
    ],
)
def test_a_secret_that_is_no_key_is_refused_without_quoting_it(
    secret: str, settings_for: Callable[..., Settings]
) -> None:
    with pytest.raises(WebhookInvalid) as caught:
        check_webhook(
            Webhook(url=URL, events=("job.failed",), secret=secret), settings_for(webhook_allowed_ports=(443,))
        )
    (problem,) = caught.value.problems
    assert problem.loc == ("secret",)
    assert len(secret) < 8 or secret not in problem.msg


def test_all_that_is_wrong_is_named_at_once(settings_for: Callable[..., Settings]) -> None:
    with pytest.raises(WebhookInvalid) as caught:
        check_webhook(Webhook(url="http://10.0.0.1/", events=("job.failed",), secret="x"), settings_for())
    assert {p.loc for p in caught.value.problems} == {("url",), ("secret",)}


def test_without_a_secret_of_its_own_or_the_service_s_a_webhook_is_refused(
    settings_for: Callable[..., Settings],
) -> None:
    webhook = Webhook(url=URL, events=("job.failed",), secret=None)
    check_webhook(webhook, settings_for(webhook_allowed_ports=(443,), webhook_secret=SECRET))
    with pytest.raises(WebhookInvalid, match="secret"):
        check_webhook(webhook, settings_for(webhook_allowed_ports=(443,)))
    assert secret_problem(SECRET) is None
