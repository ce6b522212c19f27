"""The worker's output names jobs, counts and times; never a document's text, a schema's words or an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from queue_client import DEADLINE_S, ROOT, Client, Part, until
from redis import Redis

from worker import documents, keys
from worker.job_record import Job
from worker.jobs import FUNCTION

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

MARKER = "Xylophon"
SCHEMA = {
    f"{MARKER}field": {
        "type": "enum",
        "choices": [f"{MARKER}one", f"{MARKER}two"],
        "description": f"Which {MARKER}?",
    }
}


def forge_schema(redis: Redis, job: Job, context: str, schema: object) -> None:
    given = {"context": documents.context_id(context), "schema": schema, "options": {}}
    redis.hset(keys.job(job.id), "data", zlib.compress(json.dumps([FUNCTION, None, [given], {}]).encode()))


def submit_all_kinds(redis: Redis, client: Client) -> list[Job]:
    """Jobs that complete, and jobs that fail in each way that a real engine can make them fail."""
    good = client.submit(f"It is about a {MARKER}.", schema=SCHEMA, metadata={"note": MARKER})
    long = client.submit(f"{MARKER} " * 20_000, schema=SCHEMA)
    forged = [client.submit(f"{MARKER} {i}", schema=SCHEMA) for i in range(3)]
    forge_schema(redis, forged[0], f"{MARKER} 0", {MARKER: {"type": MARKER}})
    forge_schema(redis, forged[1], f"{MARKER} 1", {MARKER: {"type": "enum", "choices": [MARKER, MARKER]}})
    redis.hset(keys.job(forged[2].id), "data", f"garbage about {MARKER}")
    return [good, long, *forged]


def test_a_real_worker_s_output_holds_no_text(
    redis: Redis, client: Client, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    jobs = submit_all_kinds(redis, client)
    environment = {
        **os.environ,
        "FIELDCAST_REDIS_URL": valkey.url,
        "FIELDCAST_WORKER_METRICS_PORT": "0",
        "FIELDCAST_WORKER_SLOT": "mac",
        "FIELDCAST_MODEL": "smollm2-135m",
        "PYTHONUNBUFFERED": "1",
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", "worker"], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    try:
        ended = client.until_ended(jobs)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_S) == 0
    finally:
        worker.kill()
        worker.wait()
    assert [job.status for job in ended] == ["completed", "failed", "failed", "failed", "failed"]
    types = [job.error["type"] for job in ended if job.error]
    assert types == ["context_too_long", "invalid_schema", "invalid_schema", "payload_invalid"]
    assert all(job.id in log.read_text() for job in jobs)
    assert MARKER not in log.read_text()
    assert MARKER not in ended[1].error["detail"]  # type: ignore[index]


def test_failures_of_every_kind_put_no_text_into_the_output(
    redis: Redis, client: Client, start_worker: Callable[..., Part]
) -> None:
    jobs = client.submit_all([f"raise {MARKER}", f"fine {MARKER}", f"{MARKER} too"])
    jobs.append(client.submit(f"sleep 60 {MARKER}", timeout_s=1))
    killer = client.submit(f"die {MARKER}")
    parts = [start_worker()]
    parts[0].process.wait(DEADLINE_S)
    parts.append(start_worker())
    parts[1].process.wait(DEADLINE_S)
    parts.append(start_worker())
    client.until_ended([*jobs, killer])
    parts[2].process.send_signal(signal.SIGTERM)
    parts[2].process.wait(DEADLINE_S)
    output = "".join(part.log for part in parts)
    for action in ("batch_error", "batch_timeout", "worker_recover", "job_end"):
        assert action in output
    assert MARKER not in output


def test_every_job_s_end_is_one_structured_line(client: Client, start_worker: Callable[..., Part]) -> None:
    jobs = client.submit_all(["fine", "raise x"])
    part = start_worker()
    client.until_ended(jobs)
    for job in jobs:
        lines = until(lambda job=job: [line for line in part.log.splitlines() if "job_end" in line and job.id in line])
        assert len(lines) == 1
