"""`Stack`: the whole service on one machine. Starts the parts, watches them, and drains them in order.

Imports no mlx: the worker that loads the model is a child process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from api.keys import digest_of
from deploy.embedded import EmbeddedValkey
from deploy.keys import new_key
from deploy.lifeline import Lifeline
from deploy.listening import check_free, check_host, listen
from deploy.part import Part
from engine.errors import FieldcastError
from worker.settings import Settings

WORKER_DRAIN_S = 60.0
API_DRAIN_S = 15.0
WEBHOOKS_DRAIN_S = 25.0
SERVER_CHECK_S = 0.5
FAILURES_BEFORE_GIVING_UP = 3  # before the service was ever ready; later a part is started again without end


class PartFailed(FieldcastError):
    """A part dies again and again before the service is ready."""

    type = "part_failed"

    def __init__(self, part: Part, code: int) -> None:
        super().__init__(
            f"the {part.name} did not start ({ending(code)}). Its log, {part.log_path}, ends with:\n{part.log_tail()}"
        )


class FolderUnusable(FieldcastError):
    """The data folder cannot be written."""

    type = "folder_unusable"


class Stack:
    """Embedded server (unless `redis_url` is set), worker, api and webhooks.

    `say` is told what happens, in words. `failed` is set to an error when a part cannot be started.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings, self._say = settings, say
        self._listening: socket.socket | None = None
        self._lifeline: Lifeline | None = None
        self._server: EmbeddedValkey | None = None
        self._parts: list[Part] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._watcher: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready = False
        self.key = new_key()  # of the sample job, for as long as this process lives

    @property
    def port(self) -> int:
        """Where the API listens (it may have been asked to choose: port 0)."""
        assert self._listening is not None
        return int(self._listening.getsockname()[1])

    def take_ports(self) -> None:
        """Before anything is started. Raises NotLoopback, KeysFileInvalid, PortInUse."""
        settings = self._settings
        check_host(settings)
        self._listening = listen(settings.host, settings.port, "--port or FIELDCAST_PORT")
        check_free(settings.metrics_host, settings.worker_metrics_port, "FIELDCAST_WORKER_METRICS_PORT")
        check_free(settings.metrics_host, settings.webhooks_metrics_port, "FIELDCAST_WEBHOOKS_METRICS_PORT")

    def start(self) -> None:
        """Starts everything; returns before the parts are ready. Raises EmbeddedServerError, FolderUnusable."""
        settings = self._settings
        logs = settings.data_dir / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderUnusable(
                f"the folder {logs} cannot be made: {error.strerror}; set FIELDCAST_DATA_DIR to a folder of yours"
            ) from error
        if settings.redis_url is None:
            self._server = EmbeddedValkey(settings.data_dir / "valkey", settings.socket_path)
            self._server.start()
            self._watcher = asyncio.create_task(self._watch_server(self._server))
        assert self._listening is not None
        self._lifeline = Lifeline()
        environment = {
            **self._lifeline.environment(),
            "FIELDCAST_HOST": settings.host,
            "FIELDCAST_PORT": str(self.port),
            "FIELDCAST_DATA_DIR": str(settings.data_dir),
        }
        listen_fd = self._listening.fileno()
        api = ["api", "--listen-fd", str(listen_fd), "--own-key", digest_of(self.key)]
        for name, arguments, fds, drain_s in (
            ("worker", ["worker"], [self._lifeline.fd], WORKER_DRAIN_S),
            ("api", api, [self._lifeline.fd, listen_fd], API_DRAIN_S),
            ("webhooks", ["webhooks"], [self._lifeline.fd], WEBHOOKS_DRAIN_S),
        ):
            part = Part(
                name, arguments, environment=environment, log_path=logs / f"{name}.log", fds=fds, drain_s=drain_s
            )
            self._parts.append(part)
            self._tasks.append(asyncio.create_task(part.keep_running(self._died)))

    async def stop(self, hurry: asyncio.Event) -> None:
        """Drains: the worker first, so that waiting clients get their answers, then api, webhooks and the server."""
        for part in self._parts:
            self._say(f"stopping the {part.name}")
            await part.stop(hurry)
        await asyncio.gather(*self._tasks)
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
        if self._server is not None:
            self._say("stopping the embedded server")
            self._server.stop()
        if self._parts:
            self._say("stopped")
        if self._lifeline is not None:
            self._lifeline.close()
        if self._listening is not None:
            self._listening.close()
        if not self.failed.cancel() and not self.failed.cancelled():
            self.failed.exception()  # seen: asyncio would complain of an error that nobody looked at

    def _died(self, part: Part, code: int, delay_s: float) -> None:
        if not self.ready and part.failures >= FAILURES_BEFORE_GIVING_UP:
            if not self.failed.done():
                self.failed.set_exception(PartFailed(part, code))
            return
        self._say(f"the {part.name} ended ({ending(code)}); starting it again in {delay_s:g} s, log: {part.log_path}")

    async def _watch_server(self, server: EmbeddedValkey) -> None:
        while True:
            await asyncio.sleep(SERVER_CHECK_S)
            if server.is_running():
                continue
            self._say("the embedded server ended; starting it again")
            try:
                server.stop()
                server.start()
            except FieldcastError as error:
                self._say(f"the embedded server did not start: {error}")


def ending(code: int) -> str:
    """An exit code in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
