"""The entry of each part's own process: `fieldcast api | worker | webhooks`. Imports a part only when it is the one."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

from deploy import lifeline, logs
from deploy.listening import check_host, listen

if TYPE_CHECKING:
    from worker.settings import Settings


def api(settings: Settings, listen_fd: int | None = None, own_key: str | None = None) -> int:
    """Serves HTTP until SIGTERM or SIGINT. From the supervisor: `listen_fd`, a socket that already listens, and
    `own_key`, the SHA-256 of the key that it uses itself."""
    check_host(settings)
    if listen_fd is None:
        listening = listen(settings.host, settings.port, "FIELDCAST_PORT or --port")
    else:
        listening = socket.socket(fileno=listen_fd)
    _begin()
    from api.app import create_app
    from api.keys import ApiKey
    from api.server import Server
    from worker.tenants import DEFAULT

    # uvicorn raises the signal again after its drain; having drained is not a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = Server(create_app(settings, ApiKey(DEFAULT, own_key) if own_key else None))
    with listening:
        server.run(sockets=[listening])
    return 0 if server.started else 1


def worker(settings: Settings) -> int:
    """Answers jobs until SIGTERM or SIGINT."""
    from worker.main import main

    _begin()
    return main(settings)


def webhooks(settings: Settings) -> int:
    """Sends webhooks until SIGTERM or SIGINT."""
    from worker.webhooks import main

    _begin()
    return main(settings)


def _begin() -> None:
    logs.configure()
    lifeline.hold()
