"""A TCP proxy in front of the server's unix socket, with the faults of a network: cut, silent, slow."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

CHUNK = 65536
LOOK_S = 0.01


class Proxy:
    """`hold` stops all bytes in both directions until `release`; what was held arrives then, late. `cut` ends the
    connections there are. `delay_s` is added to every chunk."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held = threading.Event()
        self._closed = False
        self._ends: list[socket.socket] = []
        self.delay_s = 0.0
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def hold(self) -> None:
        self._held.set()

    def release(self) -> None:
        self._held.clear()

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._ends += [client, server]
                self._start(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            answers = self._start(self._pump, server, client)
            self._pump(client, server)
            answers.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                time.sleep(self.delay_s)
                while self._held.is_set() and not self._closed:
                    time.sleep(LOOK_S)
                sink.sendall(chunk)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *args: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread
