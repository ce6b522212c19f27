"""Ports of this machine: which host may be bound, and taking a port before anything is started."""

from __future__ import annotations

import errno
import ipaddress
import socket

from api.keys import read_keys
from engine.errors import FieldcastError
from worker.settings import Settings

BACKLOG = 1024


class NotLoopback(FieldcastError):
    """Without API keys the service may not be reachable from other machines."""

    type = "not_loopback"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"refusing to listen on {host}: without API keys anyone who reaches the port could use the service. "
            f"Make a key with `fieldcast keys new TENANT`, or use 127.0.0.1, ::1 or localhost (FIELDCAST_HOST)"
        )


class PortInUse(FieldcastError):
    """Another process listens there."""

    type = "port_in_use"

    def __init__(self, host: str, port: int, choose: str) -> None:
        super().__init__(f"port {port} on {host} is in use; stop what listens there, or choose another with {choose}")


def check_host(settings: Settings) -> None:
    """Raises NotLoopback unless the API's host is this machine's loopback or there are keys, and KeysFileInvalid."""
    if not read_keys(settings.keys_path) and not _is_loopback(settings.host):
        raise NotLoopback(settings.host)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int, choose: str) -> socket.socket:
    """A socket that listens there. `choose` names the setting of the port. Raises PortInUse."""
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port, choose) from None
        raise FieldcastError(f"cannot listen on {host}, port {port}: {error.strerror}; see {choose}") from error
    except BaseException:
        listening.close()
        raise
    return listening


def check_free(host: str, port: int, choose: str) -> None:
    """Raises PortInUse when something listens there."""
    listen(host, port, choose).close()


def url(host: str, port: int) -> str:
    """Where this machine reaches what listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
