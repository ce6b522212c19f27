"""The API's Redis connections. Imports worker.connection and worker.settings only."""

from __future__ import annotations

from redis.asyncio import Redis

from worker.connection import connect_async
from worker.settings import Settings

MAX_CONNECTIONS = 32  # a waiting client holds none
CONNECT_TIMEOUT_S = 2.0
COMMAND_TIMEOUT_S = 5.0


def connect(settings: Settings) -> Redis:
    """A client for `settings`' server. It sends nothing twice: after a lost answer a repeated EXEC could enqueue a job
    twice, and a dead server must give a 503 at once instead of after ten attempts."""
    return connect_async(
        settings.connection_url,
        max_connections=MAX_CONNECTIONS,
        timeout=COMMAND_TIMEOUT_S,
        socket_timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
    )
