"""What `fieldcast doctor` finds: a machine in order, and each thing that can be wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from processes import Command
from service import free_ports

from deploy.embedded import EmbeddedValkey


@pytest.fixture
def doctor(fieldcast: Command) -> Command:
    """`fieldcast doctor --json` on ports that are free."""
    api, worker, webhooks = map(str, free_ports(3))

    def run(**settings: str) -> CompletedProcess[str]:
        ports = {"port": api, "worker_metrics_port": worker, "webhooks_metrics_port": webhooks}
        return fieldcast("doctor", "--json", **{**ports, **settings})

    return run


def findings(done: CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {one["check"]: one for one in json.loads(done.stdout)}


def test_a_machine_in_order(doctor: Command, data_dir: Path) -> None:
    done = doctor()
    found = findings(done)
    assert done.returncode == 0
    assert {one["state"] for name, one in found.items() if name != "blas"} == {"ok"}
    assert found["blas"]["state"] == "ok" or "libopenblas0-pthread" in found["blas"]["advice"]
    assert "model" in found
    assert "embedded server" in found


def test_it_prints_a_table(fieldcast: Command, data_dir: Path) -> None:
    assert "embedded server" in fieldcast("doctor").stdout


def test_a_model_that_is_not_here_yet_is_a_warning(doctor: Command) -> None:
    done = doctor()
    assert done.returncode == 0
    assert findings(done)["model"]["state"] == "warning"
    assert "fieldcast models pull" in findings(done)["model"]["advice"]


@pytest.mark.parametrize("model", ["nonsense", "/not/there"])
def test_a_model_that_does_not_exist_is_an_error(doctor: Command, model: str) -> None:
    done = doctor(model=model)
    assert done.returncode == 1
    assert "FIELDCAST_MODEL" in findings(done)["model"]["advice"]


def test_a_folder_that_is_no_model_is_an_error(doctor: Command, tmp_path: Path) -> None:
    found = findings(doctor(model=str(tmp_path)))["model"]
    assert found["state"] == "error"
    assert "config.json" in found["detail"]


def test_keys_that_others_may_add_to_are_a_warning(doctor: Command, data_dir: Path) -> None:
    assert findings(doctor())["api access"]["state"] == "ok"
    keys = data_dir / "api_keys"
    keys.write_text(f"ada {'0' * 64}\n")
    keys.chmod(0o666)
    found = findings(doctor(host="0.0.0.0"))["api access"]
    assert (found["state"], found["advice"]) == ("warning", f"`chmod 600 {keys}`")


def test_a_port_in_use_is_an_error(doctor: Command, data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = doctor(worker_metrics_port=str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert findings(done)["worker port"]["state"] == "error"
    assert "FIELDCAST_WORKER_METRICS_PORT" in findings(done)["worker port"]["advice"]


def test_a_redis_that_does_not_answer_is_an_error(doctor: Command, data_dir: Path) -> None:
    [port] = free_ports(1)
    done = doctor(redis_url=f"redis://127.0.0.1:{port}/0")
    assert done.returncode == 1
    assert "FIELDCAST_REDIS_URL" in findings(done)["redis"]["advice"]


def test_a_redis_that_answers(doctor: Command, data_dir: Path, valkey: EmbeddedValkey) -> None:
    assert findings(doctor(redis_url=valkey.url))["redis"]["state"] == "ok"
