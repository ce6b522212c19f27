"""Receivers on loopback, settings that allow them, and a real sender against the test's own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from webhook_receiver import Receiver

from worker.settings import Settings
from worker.webhook_post import Poster
from worker.webhooks import Sender

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey


@pytest.fixture
def start_receiver() -> Iterator[Callable[..., Receiver]]:
    receivers: list[Receiver] = []

    def start(*answers: Any, tls: bool = False) -> Receiver:
        receivers.append(Receiver(*answers, tls=tls))
        return receivers[-1]

    yield start
    for receiver in receivers:
        receiver.close()


@pytest.fixture
def receiver(start_receiver: Callable[..., Receiver]) -> Receiver:
    return start_receiver(200)


@pytest.fixture
def settings_for(tmp_path: Path) -> Callable[..., Settings]:
    """Settings that allow these receivers on loopback, and retry almost at once."""

    def make(*receivers: Receiver, **changes: Any) -> Settings:
        given = {
            "data_dir": tmp_path,
            "webhook_allow_http": True,
            "webhook_allowed_private_hosts": ("127.0.0.1", "hooks.fieldcast.test"),
            "webhook_allowed_ports": tuple(r.port for r in receivers),
            "webhook_retry_delays_s": (0.02,) * 7,
            "webhook_timeout_s": 100.0,
        }
        return Settings(**{**given, **changes})

    return make


@pytest.fixture
def sending(valkey: EmbeddedValkey) -> Callable[[Settings], AbstractAsyncContextManager[Redis]]:
    """`async with sending(settings) as redis:` a sender runs against the test's server."""

    @asynccontextmanager
    async def start(settings: Settings) -> AsyncIterator[Redis]:
        redis, poster, stop = Redis.from_url(valkey.url), Poster(settings), asyncio.Event()
        task = asyncio.create_task(Sender(redis, settings, poster).run(stop))
        try:
            yield redis
        finally:
            stop.set()
            await task
            await poster.close()
            await redis.aclose()

    return start
