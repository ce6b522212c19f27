"""A port on loopback that takes connections with TLS or without, and hands their bytes on to a server that has no TLS:
the Valkey that the tests run."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from service import CERTIFICATE, KEY

CHUNK = 65536
HANDSHAKE = b"\x16"  # the first byte of whoever speaks TLS

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TlsFront:
    """`connect` opens a stream to the server behind. `greetings` are the first bytes of the connections taken."""

    def __init__(self, connect: Callable[[], Awaitable[Stream]]) -> None:
        self._connect = connect
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE, KEY)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.greetings: list[bytes] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._threads = [threading.Thread(target=target) for target in (self._loop.run_forever, self._accept)]

    def __enter__(self) -> TlsFront:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join()
        self._loop.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                first = client.recv(1, socket.MSG_PEEK)
                self.greetings.append(first)
                asyncio.run_coroutine_threadsafe(self._serve(client, first == HANDSHAKE), self._loop)

    async def _serve(self, client: socket.socket, with_tls: bool) -> None:
        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._hand_on)

        with suppress(OSError):  # the client does not trust us
            await self._loop.connect_accepted_socket(protocol, client, ssl=self._context if with_tls else None)

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        answers, commands = await self._connect()
        self._writers.append(commands)
        await asyncio.gather(_pump(reader, commands), _pump(answers, writer))

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # what is aborted is closed in the loop's next rounds


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(CHUNK):
            sink.write(chunk)
            await sink.drain()
    sink.close()
