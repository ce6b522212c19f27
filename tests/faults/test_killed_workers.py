"""kill -9 at the worst moments: nothing is lost, nothing ends twice, and what kills workers is put away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from job_history import ended_once
from queue_client import ROOT, Client, Part, ids_in, queued_ids, until
from redis import Redis
from scripted import POINTS
from service import PART

from worker import documents, keys
from worker.batch_worker import BatchWorker
from worker.job_record import Job

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

StartWorker = Callable[..., Part]
MODEL_LOAD_S = 200.0  # at most; without OpenBLAS it takes a minute


def running(client: Client, jobs: list[Job]) -> bool:
    return all(client.status(job) == "in_progress" for job in jobs)


def test_a_batch_whose_worker_was_killed_is_run_again_by_the_next_one(
    redis: Redis, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = [*client.submit_all([f"hold {gate}"] * 3), *client.submit_all(["fine", "fine too"])]
    killed = start_worker()
    until(lambda: running(client, jobs))
    killed.process.kill()
    killed.process.wait()
    waiting = client.submit("came later")
    gate.touch()
    start_worker()
    ended = ended_once(redis, client, [*jobs, waiting])
    assert [job.status for job in ended] == ["completed"] * 6
    assert [job.attempts for job in ended] == [2] * 5 + [1]


def test_jobs_that_were_running_in_a_crash_run_alone(
    redis: Redis, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = client.submit_all([f"hold {gate}"] * 3)
    killed = start_worker()
    until(lambda: running(client, jobs))
    killed.process.kill()
    killed.process.wait()
    gate.touch()
    second = start_worker()
    client.until_ended(jobs)
    assert [len(call) for call in second.calls] == [1, 1, 1]


def test_a_job_that_kills_its_worker_twice_is_quarantined_and_its_neighbours_complete(
    redis: Redis, client: Client, start_worker: StartWorker
) -> None:
    good, killer, also_good = client.submit_all(["fine", "die", "fine too"])
    parts = []
    for _ in range(2):
        parts.append(start_worker())
        assert parts[-1].process.wait(90) == -9
    parts.append(start_worker())
    ended = ended_once(redis, client, [good, killer, also_good])
    assert [job.status for job in ended] == ["completed", "failed", "completed"]
    problem = ended[1].error
    assert problem is not None
    assert problem["type"] == "quarantined"
    assert ended[1].attempts == 2
    assert ended[1].finished_at is not None
    assert sum(call.count("die") for part in parts for call in part.calls) == 2
    assert 0 < redis.ttl(keys.document(documents.context_id("die"))) <= 3600


def test_a_claim_whose_worker_was_killed_before_it_started_goes_back_in_order(
    redis: Redis, client: Client, start_worker: StartWorker, new_worker: Callable[..., BatchWorker]
) -> None:
    jobs = client.submit_all(["a", "b", "a", "c"])
    claimed_order = [jobs[i].id for i in (0, 2, 1)]
    assert start_worker("claimed", batch_rows=3).process.wait(90) == -9
    assert ids_in(redis, keys.claimed("mac")) == claimed_order
    later = client.submit("d")
    worker = new_worker()
    worker.bootstrap("WARNING")
    assert queued_ids(redis) == [*claimed_order, jobs[3].id, later.id]
    assert redis.hlen(keys.CRASHES) == 0
    worker.teardown()


@pytest.mark.parametrize("point", POINTS)
def test_wherever_a_worker_is_killed_every_job_ends_once(
    point: str, redis: Redis, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = client.submit_all([f"hold {gate}", f"hold {gate}"])
    first = start_worker(batch_rows=2)  # it leaves something to recover
    until(lambda: running(client, jobs))
    first.process.kill()
    first.process.wait()
    jobs += client.submit_all(["fine", "fine", "raise", "fine too"])
    gate.touch()
    assert start_worker(point).process.wait(90) == -9
    start_worker()
    ended = ended_once(redis, client, jobs)
    # The first two are suspects by now, and run alone; the one with which a worker is killed again is quarantined.
    twice = point in ("started", "mid-prefill", "mid-pass", "before commit")
    suspects = sorted(job.error["type"] if job.error else job.status for job in ended[:2])
    assert suspects == ["completed", "quarantined" if twice else "completed"]
    assert [job.status for job in ended[2:]] == ["completed", "completed", "failed", "completed"]


def test_another_slot_s_worker_picks_up_what_a_dead_one_left_when_its_lease_is_over(
    redis: Redis, client: Client, start_worker: StartWorker, tmp_path: Path, drain: Callable[..., BatchWorker]
) -> None:
    gate = tmp_path / "gate"
    running_job = client.submit(f"hold {gate}")
    killed = start_worker(slot="other", lease_s=2, heartbeat_s=0.5)
    until(lambda: running(client, [running_job]))
    killed.process.kill()
    killed.process.wait()
    claimed_job = client.submit("fine")
    redis.lmove(keys.QUEUE_LIST, keys.claimed("other"))
    gate.touch()
    until(lambda: not redis.exists(keys.owner("other")))
    drain()
    [again, after] = ended_once(redis, client, [running_job, claimed_job])
    assert (again.status, again.attempts) == ("completed", 2)
    assert (after.status, after.attempts) == ("completed", 1)


def test_a_second_worker_of_a_slot_waits_until_the_first_has_gone(
    client: Client, start_worker: StartWorker, redis: Redis
) -> None:
    first = start_worker()
    until(lambda: redis.exists(keys.worker("mac")))
    second = start_worker()
    until(lambda: "slot_wait" in second.log or "waiting for the slot" in second.log)
    first.process.kill()
    first.process.wait()
    job = client.submit("fine")
    assert client.until_ended([job])[0].status == "completed"
    assert second.calls == [["fine"]]


def test_a_worker_that_is_killed_while_the_model_computes(
    valkey: EmbeddedValkey, redis: Redis, client: Client, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "FIELDCAST_REDIS_URL": valkey.url,
        "FIELDCAST_MODEL": "smollm2-135m",
        "FIELDCAST_WORKER_SLOT": "mac",
        "FIELDCAST_WORKER_METRICS_PORT": "0",
    }

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "worker.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PART.format("main")], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    jobs = client.submit_all(["The parcel is late. " * 60, "The invoice is wrong. " * 60])
    killed = start()
    try:
        until(lambda: running(client, jobs), MODEL_LOAD_S)
        killed.kill()
        killed.wait()
        assert running(client, jobs)  # it had not ended them
        owner = redis.get(keys.owner("mac"))
        second = start()
        try:
            until(lambda: redis.get(keys.owner("mac")) != owner and redis.exists(keys.worker("mac")), MODEL_LOAD_S)
            ended = ended_once(redis, client, jobs)
            assert [(job.status, job.attempts) for job in ended] == [("completed", 2)] * 2
        finally:
            second.terminate()
            assert second.wait(60) == 0
    finally:
        killed.kill()
        killed.wait()
