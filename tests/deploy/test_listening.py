"""Which hosts may be bound, and what a port in use says."""

from __future__ import annotations

import socket

import pytest

from deploy.listening import NotLoopback, PortInUse, check_free, check_loopback, listen, url


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_may_be_bound(host: str) -> None:
    check_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.168.1.5", "10.0.0.1", "example.org", "host.docker.internal", "::ffff:0.0.0.0"]
)
def test_nothing_else_may_be_bound(host: str) -> None:
    with pytest.raises(NotLoopback, match="FIELDCAST_HOST"):
        listen(host, 0, "--port")


def test_a_port_in_use_is_named_with_the_setting_that_chooses_another() -> None:
    with listen("127.0.0.1", 0, "--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} .* --port"):
            check_free("127.0.0.1", port, "--port")
    check_free("127.0.0.1", port, "--port")


def test_a_port_is_free_again_right_after_a_connection_was_closed_by_the_server() -> None:
    with listen("127.0.0.1", 0, "--port") as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listening.accept()
            accepted.close()  # first: this side keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    check_free("127.0.0.1", port, "--port")


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")], ids=["v4", "v6"]
)
def test_urls(host: str, expected: str) -> None:
    assert url(host, 8000) == expected
