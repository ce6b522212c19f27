"""The whole service as `fieldcast up` runs it, part by part, after some real work: what it then shows to Prometheus."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from service import PART, free_ports

from deploy.embedded import EmbeddedValkey

ROOT = Path(__file__).parents[2]
_SERVE = (
    "import uvicorn; from api.app import create_app_from_env as app; from worker.settings import Settings;"
    "s = Settings(); uvicorn.run(app, factory=True, host=s.host, port=s.port, log_level='warning')"
)
PARTS = {"api": _SERVE, "worker": PART.format("main"), "webhooks": PART.format("webhooks")}


@dataclass(frozen=True)
class Scrape:
    """One process's `/metrics`."""

    text: str

    def samples(self) -> list[Sample]:
        return [s for family in text_string_to_metric_families(self.text) for s in family.samples]


def answer(url: str, deadline_s: float, **request: Any) -> httpx.Response:
    """The answer of a server that may still be starting."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            return httpx.get(url, **request)
        except httpx.TransportError:
            assert time.monotonic() < end, f"{url} does not answer"
            time.sleep(0.05)


@pytest.fixture(scope="session")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scrape]]:
    """What each part shows after a job that completed, one that was refused, and a path that does not exist."""
    folder = tmp_path_factory.mktemp("monitoring")
    ports = dict(zip(PARTS, free_ports(len(PARTS)), strict=True))
    with EmbeddedValkey(folder / "valkey", folder / "v.sock") as server:
        environment = {
            **os.environ,
            "FIELDCAST_REDIS_URL": server.url,
            "FIELDCAST_PORT": str(ports["api"]),
            "FIELDCAST_WORKER_METRICS_PORT": str(ports["worker"]),
            "FIELDCAST_WEBHOOKS_METRICS_PORT": str(ports["webhooks"]),
        }
        processes = [
            subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment) for code in PARTS.values()
        ]
        try:
            api = f"http://127.0.0.1:{ports['api']}"
            answer(f"{api}/healthz", 60)
            answer(f"http://127.0.0.1:{ports['worker']}/metrics", 120)
            answer(f"http://127.0.0.1:{ports['webhooks']}/metrics", 60)
            httpx.post(f"{api}/v1/jobs", json={"context": "x"})
            httpx.get(f"{api}/no/such/path/42")
            job = httpx.post(f"{api}/v1/jobs", json={"context": "The app is down.", "preset": "support_triage"}).json()
            end = time.monotonic() + 120
            while job["status"] in ("queued", "in_progress"):
                assert time.monotonic() < end, "the job does not end"
                job = httpx.get(f"{api}/v1/jobs/{job['id']}", headers={"Prefer": "wait=10"}, timeout=30).json()
            assert job["status"] == "completed", job
            yield {n: Scrape(httpx.get(f"http://127.0.0.1:{port}/metrics").text) for n, port in ports.items()}
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(60)
