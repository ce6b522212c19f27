"""Clients of the Redis that a URL names: at an address, over TLS, on a unix socket, or found by Sentinel.

redis-py reads the first three kinds of URL itself, with their options (`?ssl_ca_certs=...`). The fourth is
`redis+sentinel://user:password@host:26379,host:26379/service/db`: these sentinels are asked who the master is, anew for
every connection. User, password and options are the master's; `sentinel_username` and `sentinel_password` are options
for the sentinels' own. `rediss+sentinel://` is TLS to both. Nothing is sent before a client's first command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import ConnectionPool, Redis, SSLConnection
from redis import asyncio as aio
from redis.asyncio import sentinel as aio_sentinel
from redis.asyncio.retry import Retry as AioRetry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from engine.errors import FieldcastError

SENTINEL_PORT = 26379
SENTINEL_TIMEOUT_S = 2.0  # until the next sentinel is asked
FILE_OPTIONS = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
FORMS = "redis://, rediss:// or unix:// URL, nor redis[s]+sentinel://host:port,host:port/service"
NO_MASTER = "no sentinel names a master of {!r}: they are down, refuse the log-in, or know of none"
# What a server says that is there but takes no writes now, where redis-py has no class for it: its disk is full, too
# few replicas follow it, it became one itself.
NO_WRITES = re.compile(r"(?:^|caused error: \(?['\"]?)(?:MISCONF|NOREPLICAS|UNBLOCKED) ")


class BadRedisURL(FieldcastError):
    """The text is no URL of a Redis. The message does not repeat it: it may hold a password."""

    type = "bad_redis_url"


def check_url(url: str) -> None:
    """Raises BadRedisURL where `connect` could never work."""
    client = connect(url)
    try:
        client.connection_pool.make_connection()
    except (TypeError, ValueError, RedisError):
        raise BadRedisURL("has an option that there is not, or one with a value that cannot be used") from None
    for name in FILE_OPTIONS:
        path = client.connection_pool.connection_kwargs.get(name)
        if path is not None and not Path(path).exists():
            raise BadRedisURL(f"names a file in {name} that is not there")


def connect(url: str, **options: Any) -> Redis:
    """A client that repeats no command by itself: one whose answer was lost may have been executed, and a claim would
    be a second claim. `options` are redis-py's, for each connection; the URL's own win. Raises BadRedisURL."""
    sentinels, once = _sentinels_of(url), Retry(NoBackoff(), 0)
    if sentinels is None:
        return Redis.from_pool(ConnectionPool.from_url(url, retry=once, **options))
    own = {**sentinels.sentinel_options, "retry": once}
    manager = _Sentinel(sentinels.hosts, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    given = {"ssl": sentinels.tls, "retry": once, **options, **sentinels.options}
    return Redis.from_pool(SentinelConnectionPool(sentinels.service, manager, **given))  # type: ignore[no-untyped-call]


def connect_async(url: str, *, max_connections: int, timeout: float | None, **options: Any) -> aio.Redis:
    """The same for asyncio. Who finds all `max_connections` in use waits for one, `timeout` seconds at most."""
    sentinels, once = _sentinels_of(url), AioRetry(NoBackoff(), 0)
    given = {"retry": once, "max_connections": max_connections, "timeout": timeout, **options}
    if sentinels is None:
        return aio.Redis.from_pool(aio.BlockingConnectionPool.from_url(url, **given))
    own = {**sentinels.sentinel_options, "retry": once}
    manager = _AioSentinel(sentinels.hosts, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    plain, tls = aio_sentinel.SentinelManagedConnection, aio_sentinel.SentinelManagedSSLConnection
    given |= {"connection_class": tls if sentinels.tls else plain, **sentinels.options}
    return aio.Redis.from_pool(_MasterPool(service_name=sentinels.service, sentinel_manager=manager, **given))


def is_unavailable(error: Exception) -> bool:
    """Is the server away, or there but unable to take writes for now? The rest of its error replies are our bugs (but
    for a full memory, which has an error of its own)."""
    if isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError):
        return NO_WRITES.search(str(error)) is not None
    return isinstance(error, (RedisConnectionError, RedisTimeoutError, ReadOnlyError))


@contextmanager
def suppress_unavailable() -> Iterator[None]:
    """Leave the rest undone where the server is unavailable."""
    try:
        yield
    except RedisError as error:
        if not is_unavailable(error):
            raise


class _Sentinel(Sentinel):
    """redis-py's, whose error shows every option of every connection."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            address: tuple[str, int] = super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            raise MasterNotFoundError(NO_MASTER.format(service_name)) from None
        return address


class _AioSentinel(aio_sentinel.Sentinel):
    """The same for asyncio."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            address: tuple[str, int] = await super().discover_master(service_name)
        except aio_sentinel.MasterNotFoundError:
            raise MasterNotFoundError(NO_MASTER.format(service_name)) from None
        return address


class _MasterPool(aio.BlockingConnectionPool, aio_sentinel.SentinelConnectionPool):
    """Connections to the master that wait for one another, and end with the sentinels' own."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


@dataclass(frozen=True)
class _Sentinels:
    hosts: list[tuple[str, int]]
    service: str
    tls: bool
    options: dict[str, Any]  # of a connection to the master
    sentinel_options: dict[str, Any]  # of a client of a sentinel


def _sentinels_of(url: str) -> _Sentinels | None:
    """The sentinels of such a URL; None: redis-py reads it itself."""
    try:
        scheme, marker, rest = url.partition("+sentinel://")
        if not marker:
            parse_url(url)  # type: ignore[no-untyped-call]
            return None
        address, _, query = rest.partition("?")
        authority, _, path = address.partition("/")
        userinfo, at, hosts = authority.rpartition("@")
        service, _, db = path.partition("/")
        options = parse_url(f"{scheme}://{userinfo}{at}/{int(db or 0)}?{query}")  # type: ignore[no-untyped-call]
        found = [(host.hostname, host.port or SENTINEL_PORT) for host in (urlsplit(f"//{h}") for h in hosts.split(","))]
        if scheme not in ("redis", "rediss") or not service or not all(host for host, _ in found):
            raise ValueError("no service, or a sentinel without a host")
    except ValueError:
        raise BadRedisURL(f"is no {FORMS}") from None
    tls = options.pop("connection_class", None) is SSLConnection
    own = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    own |= {name: value for name, value in options.items() if name.startswith("ssl_")}
    times = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    return _Sentinels([(str(host), port) for host, port in found], service, tls, options, {"ssl": tls, **times, **own})
