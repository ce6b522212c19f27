"""What several areas' tests need to use the service: a job to submit, a client of the API, processes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from api.app import create_app
from engine.request import Options
from engine.schema import StructuredSchema
from worker.jobs import JobSpec
from worker.settings import Settings

TLS = Path(__file__).parent / "tls"  # a self-signed pair for hooks.fieldcast.test and 127.0.0.1, of use to no one
CERTIFICATE, KEY = TLS / "certificate.pem", TLS / "key.pem"
SCHEMA = StructuredSchema({"urgent": {"type": "boolean", "description": "Is it urgent?"}})
# `python -c` with the name of a module of worker/ in place: runs that part until SIGTERM.
PART = "import sys; from worker.{} import main; from worker.settings import Settings; sys.exit(main(Settings()))"


def free_ports(count: int) -> list[int]:
    """Different ones of loopback that nobody listened on a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def job_spec(context: str = "The server room is on fire.", **changes: Any) -> JobSpec:
    """A checked submission with every default, but for `changes`. A schema may be in its dict form."""
    given: dict[str, Any] = {
        "schema": SCHEMA,
        "preset": None,
        "options": Options(),
        "min_confidence": None,
        "lane": "bulk",
        "timeout_s": 60,
        "result_ttl_s": 3600,
        "metadata": {},
        "webhook": None,
        **changes,
    }
    if not isinstance(given["schema"], StructuredSchema):
        given["schema"] = StructuredSchema(given["schema"])
    return JobSpec(context=context, **given)


@asynccontextmanager
async def api_client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application in this process, with its lifespan running."""
    app = create_app(settings)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        yield client


@dataclass(frozen=True)
class Event:
    """A server-sent event."""

    id: str
    name: str
    data: str


def events_in(text: str) -> list[Event]:
    """The events of a stream that has ended; comments are left out."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block and not block.startswith(":")]
    fields = [dict(line.split(": ", 1) for line in block) for block in blocks]
    return [Event(found["id"], found["event"], found["data"]) for found in fields]
