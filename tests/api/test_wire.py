"""What only a real server shows: a refusal that meets a client still sending, and how those who wait are let go."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import httpx
import pytest
from service import events_in

from api.app import create_app
from api.server import Server
from worker.settings import Settings

PATIENCE_S = 60


@pytest.fixture
def server(settings: Settings) -> Iterator[tuple[Server, str]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(create_app(settings))
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                thread.join(0.01)
                assert thread.is_alive()
            yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


@pytest.fixture
def base_url(server: tuple[Server, str]) -> str:
    return server[1]


@pytest.mark.parametrize("declared", [True, False])
def test_the_client_sees_the_413(base_url: str, settings: Settings, declared: bool) -> None:
    content = b" " * (3 * settings.max_body_bytes)
    pieces = content if declared else (content[i : i + 65536] for i in range(0, len(content), 65536))
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{base_url}/v1/jobs", content=pieces, headers=headers)
    assert answer.status_code == 413
    assert answer.json()["type"] == "body_too_large"


def test_a_job_goes_in_and_comes_out_over_the_wire(base_url: str) -> None:
    with httpx.Client(base_url=base_url) as client:
        answer = client.post("/v1/jobs", json={"context": "The bill is wrong.", "preset": "support_triage"})
        assert answer.status_code == 202
        held = client.get(answer.headers["location"], headers={"prefer": "wait=1"})
        assert (held.status_code, held.json()["status"]) == (202, "queued")


def test_who_waits_is_let_go_when_the_server_stops(server: tuple[Server, str]) -> None:
    """Both who asked to wait and who follows the events get a whole answer, not a broken connection."""
    running, base_url = server
    with ThreadPoolExecutor(2) as pool, httpx.Client(base_url=base_url, timeout=PATIENCE_S) as client:
        body = {"context": "The bill is wrong.", "preset": "support_triage"}
        links = client.post("/v1/jobs", json=body).json()["links"]
        waits = pool.submit(client.get, links["self"], headers={"prefer": f"wait={PATIENCE_S}"})
        follows = pool.submit(client.get, links["events"])
        while running.waiting < 2:
            time.sleep(0.01)
        running.should_exit = True
        assert (waits.result().status_code, waits.result().json()["status"]) == (202, "queued")
        assert [event.name for event in events_in(follows.result().text)] == ["queued"]
