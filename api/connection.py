"""The API's Redis connection pool. Imports worker.settings only."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from worker.settings import Settings

MAX_CONNECTIONS = 32  # a waiting client holds none
CONNECT_TIMEOUT_S = 2.0
COMMAND_TIMEOUT_S = 5.0


def connect(settings: Settings) -> Redis:
    """A client for `settings`' server. Nothing is sent before its first command.

    No command is sent twice: after a lost answer a repeated EXEC could enqueue a job twice, and a dead server must give
    a 503 at once instead of after ten attempts.
    """
    pool = BlockingConnectionPool.from_url(
        settings.connection_url,
        max_connections=MAX_CONNECTIONS,
        timeout=COMMAND_TIMEOUT_S,
        socket_timeout=COMMAND_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)  # which then owns it: closing the client closes the connections
