"""Which hosts may be bound, and what a port in use says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from api.keys import KeysFileInvalid
from deploy.listening import NotLoopback, PortInUse, check_free, check_host, listen, url
from worker.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_may_be_bound(host: str, tmp_path: Path) -> None:
    check_host(Settings(host=host, data_dir=tmp_path))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.168.1.5", "10.0.0.1", "example.org", "host.docker.internal", "::ffff:0.0.0.0"]
)
def test_nothing_else_may_be_bound_without_keys(host: str, tmp_path: Path) -> None:
    settings = Settings(host=host, data_dir=tmp_path)
    with pytest.raises(NotLoopback, match=r"fieldcast keys new .*FIELDCAST_HOST"):
        check_host(settings)
    settings.keys_path.write_text("# all revoked\n")
    with pytest.raises(NotLoopback):
        check_host(settings)
    settings.keys_path.write_text(f"ada {'0' * 64}\n")
    check_host(settings)


def test_a_keys_file_that_cannot_be_used_is_named_with_its_line(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    settings.keys_path.write_text("# keys\nada fc_not_a_hash\n")
    with pytest.raises(KeysFileInvalid, match="api_keys: line 2 is not") as caught:
        check_host(settings)
    assert "fc_not_a_hash" not in str(caught.value)


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
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
    ],
)
def test_urls(host: str, expected: str) -> None:
    assert url(host, 8000) == expected
