"""A real HTTP server on loopback that receives webhooks, as its operators' servers do."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service import CERTIFICATE, KEY

SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"

Answer = int | str | tuple[int, dict[str, str]]


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


class Receiver:
    """Answers POSTs with `answers` in turn, the last one again and again: a status, one with headers, or "hang"."""

    def __init__(self, *answers: Answer, tls: bool = False) -> None:
        self.answers = answers or (200,)
        self.received: list[Received] = []
        self.server_names: list[str | None] = []
        self.scheme = "https" if tls else "http"
        self._released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self.port = int(self._server.server_address[1])
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE, KEY)
            context.sni_callback = lambda _socket, name, _context: self.server_names.append(name)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def url(self, host: str = "127.0.0.1", path: str = "/hook") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def release(self) -> None:
        """Lets hanging requests end without an answer."""
        self._released.set()

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    receiver: Receiver
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gives up is part of several tests


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {k.lower(): v for k, v in self.headers.items()}
        receiver.received.append(Received(self.path, headers, body, time.time()))
        answer = receiver.answers[min(len(receiver.received), len(receiver.answers)) - 1]
        if isinstance(answer, str):
            receiver._released.wait(120)
            self.close_connection = True
            return
        status, extra = answer if isinstance(answer, tuple) else (answer, {})
        self.send_response(status)
        for name, value in {"content-length": "0", **extra}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


async def until(condition: Callable[[], Any], deadline_s: float = 60.0) -> Any:
    """What `condition` returns (awaited when it can be), once that is true. Fails after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.01)
