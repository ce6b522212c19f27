"""`fieldcast up` as a user runs it: the real server, worker, API and sender, as processes; nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from processes import Command, Process, eventually, mentioning
from service import free_ports

from worker.settings import Settings

START_TIMEOUT_S = 120.0


class Running:
    """A `fieldcast up` in a process group of its own, as a terminal would start it; its output in a file."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._log = log
        self.data_dir = environment["FIELDCAST_DATA_DIR"]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deploy.cli", "up", "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                process_group=0,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        assert eventually(lambda: text in self.output or self.process.poll() is not None, START_TIMEOUT_S), self.output
        assert text in self.output

    @property
    def base_url(self) -> str:
        found = re.search(r"Fieldcast is up on (\S+)", self.output)
        assert found
        return found[1]

    def part(self, name: str) -> Process:
        [process] = [p for p in mentioning(self.data_dir) if re.search(rf"deploy\.cli {name}\b", p.command)]
        return process

    def server(self) -> Process:
        [process] = [p for p in mentioning(self.data_dir) if "valkey-server" in p.command]
        return process

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/readyz", trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)


@pytest.fixture
def up_environment(environment: dict[str, str], data_dir: Path) -> dict[str, str]:
    worker, webhooks = map(str, free_ports(2))
    return {
        **environment,
        "PYTHONUNBUFFERED": "1",
        "FIELDCAST_WORKER_METRICS_PORT": worker,
        "FIELDCAST_WEBHOOKS_METRICS_PORT": webhooks,
    }


@pytest.fixture
def running(up_environment: dict[str, str], tmp_path: Path) -> Iterator[Running]:
    started = Running(up_environment, tmp_path / "up.log")
    try:
        yield started
    finally:
        for process in [Process(started.process.pid, ""), *mentioning(started.data_dir)]:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        started.process.wait()


def left_behind(data_dir: Path) -> list[str]:
    """Processes and sockets that a stopped service must not leave."""
    sockets = [str(path) for path in data_dir.rglob("*") if path.is_socket()]
    if (path := Settings(data_dir=data_dir).socket_path).exists():  # elsewhere when data_dir is too long for a socket
        sockets.append(str(path))
    return sockets + [process.command for process in mentioning(str(data_dir))]


def test_once_answers_a_job_and_leaves_nothing_behind(
    fieldcast: Command, up_environment: dict[str, str], data_dir: Path
) -> None:
    done = fieldcast(
        "up",
        "--once",
        "--json",
        "--port",
        "0",
        worker_metrics_port=up_environment["FIELDCAST_WORKER_METRICS_PORT"],
        webhooks_metrics_port=up_environment["FIELDCAST_WEBHOOKS_METRICS_PORT"],
    )
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    assert job["status"] == "completed"
    assert len(job["result"]["json"]) == 28
    assert left_behind(data_dir) == []


def test_it_stays_up_restarts_what_dies_and_drains_on_ctrl_c(running: Running, data_dir: Path) -> None:
    running.wait_for("Ctrl-C drains")
    assert "requires_escalation" in running.output  # the sample's answers

    first = running.part("worker").pid
    os.kill(first, signal.SIGKILL)
    running.wait_for("the worker ended (signal 9)")
    assert eventually(
        lambda: [p for p in mentioning(running.data_dir) if p.command.endswith("worker") and p.pid != first]
    )
    answer = httpx.post(
        f"{running.base_url}/v1/jobs",
        json={"preset": "fintech_fraud", "context": "Card payment of 9 EUR at the usual bakery."},
        trust_env=False,
    )
    assert answer.status_code == httpx.codes.ACCEPTED

    def ended() -> bool:
        job = httpx.get(f"{running.base_url}/v1/jobs/{answer.json()['id']}", trust_env=False).json()
        return bool(job["status"] == "completed")

    assert eventually(ended, START_TIMEOUT_S)

    os.kill(running.server().pid, signal.SIGKILL)
    running.wait_for("the embedded server ended")
    assert eventually(running.is_ready, START_TIMEOUT_S)

    running.ctrl_c()
    assert running.process.wait(timeout=START_TIMEOUT_S) == 0
    order = [running.output.index(f"stopping the {part}") for part in ("worker", "api", "webhooks", "embedded server")]
    assert order == sorted(order)
    assert left_behind(data_dir) == []


def test_ctrl_c_while_it_starts_stops_everything(running: Running, data_dir: Path) -> None:
    running.wait_for("starting on")
    running.ctrl_c()
    assert running.process.wait(timeout=START_TIMEOUT_S) == 0
    assert left_behind(data_dir) == []


def test_a_second_ctrl_c_hurries_a_part_that_does_not_drain(running: Running, data_dir: Path) -> None:
    running.wait_for("Ctrl-C drains")
    worker = running.part("worker").pid
    os.kill(worker, signal.SIGSTOP)  # it will never see its SIGTERM
    running.ctrl_c()
    running.wait_for("stopping the worker")
    assert eventually(lambda: running.ctrl_c() or "hurrying" in running.output)
    assert running.process.wait(timeout=START_TIMEOUT_S) == 0
    assert left_behind(data_dir) == []


def test_parts_end_with_their_supervisor_and_the_next_start_takes_over_its_server(
    running: Running, up_environment: dict[str, str], data_dir: Path, tmp_path: Path
) -> None:
    running.wait_for("Ctrl-C drains")
    server = running.server().pid
    running.process.kill()
    running.process.wait()
    assert eventually(lambda: [p.pid for p in mentioning(running.data_dir)] == [server], START_TIMEOUT_S)

    again = Running(up_environment, tmp_path / "again.log")
    again.wait_for("starting on")
    assert again.server().pid == server
    again.ctrl_c()
    assert again.process.wait(timeout=START_TIMEOUT_S) == 0
    assert left_behind(data_dir) == []


def test_a_worker_that_cannot_start_ends_it_with_the_worker_s_own_words(
    fieldcast: Command, up_environment: dict[str, str], data_dir: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-model"
    broken.mkdir()
    done = fieldcast(
        "up",
        "--once",
        "--port",
        "0",
        model=str(broken),
        worker_metrics_port=up_environment["FIELDCAST_WORKER_METRICS_PORT"],
        webhooks_metrics_port=up_environment["FIELDCAST_WEBHOOKS_METRICS_PORT"],
    )
    assert done.returncode == 1
    assert "the worker did not start" in done.stderr
    assert "config.json" in done.stderr
    assert left_behind(data_dir) == []
