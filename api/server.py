"""Serves the application over HTTP. Knows uvicorn and the application; the process around it is `deploy.parts`."""

from __future__ import annotations

import socket
from typing import cast

import uvicorn
from fastapi import FastAPI

DRAIN_S = 10  # requests that still run then are broken off


class Server(uvicorn.Server):
    """uvicorn's, and whoever waits for a job is answered as soon as it is told to stop."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=DRAIN_S
            )
        )
        self._state = app.state

    @property
    def waiting(self) -> int:
        """How many requests wait for a job now."""
        return cast(int, self._state.waiter.waiting)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.waiter.close()
        await super().shutdown(sockets)
