"""What only a real server shows: that a client still sends its oversized body when the refusal reaches it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread

import httpx
import pytest
import uvicorn

from api.app import create_app
from worker.settings import Settings


@pytest.fixture
def base_url(settings: Settings) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(settings), log_config=None))
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                thread.join(0.01)
                assert thread.is_alive()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


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
