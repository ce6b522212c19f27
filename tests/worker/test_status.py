"""What is running and what waits, as others see it in Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from queue_client import Client, Part, until
from redis import Redis
from rq.suspension import resume, suspend
from service import api_client

from worker import keys, status
from worker.settings import Settings

StartWorker = Callable[..., Part]


def test_nothing_runs_and_nothing_waits(client: Client) -> None:
    assert client.call(status.workers) == []
    assert client.call(status.queue_depth) == status.QueueDepth(0, 0, None)


def test_a_live_worker_says_what_it_is_and_its_steps_go_on(client: Client, start_worker: StartWorker) -> None:
    before = time.time()
    part = start_worker(heartbeat_s=0.2)
    [first] = until(lambda: client.call(status.workers))
    assert (first.slot, first.info, first.pid) == ("mac", {"model": "scripted"}, part.process.pid)
    assert first.host
    assert before - 1 < first.started_at <= time.time()
    [later] = until(lambda: [w for w in client.call(status.workers) if w.last_step_at > first.last_step_at])
    assert later.started_at == first.started_at


def test_a_dead_worker_is_gone_when_its_lease_is_over(client: Client, start_worker: StartWorker) -> None:
    part = start_worker(lease_s=1, heartbeat_s=0.2)
    until(lambda: client.call(status.workers))
    part.process.kill()
    part.process.wait()
    until(lambda: client.call(status.workers) == [])


def test_several_workers_are_listed_by_slot(client: Client, start_worker: StartWorker) -> None:
    start_worker(slot="b")
    start_worker(slot="a")
    found = until(lambda: len(client.call(status.workers)) == 2 and client.call(status.workers))
    assert [worker.slot for worker in found] == ["a", "b"]


def test_the_queue_s_depth_counts_what_waits_and_what_runs(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    running = client.submit_all([f"hold {gate}"] * 2)
    start_worker(batch_rows=2)
    until(lambda: client.status(running[1]) == "in_progress")
    client.submit_all(["fine"] * 3)
    depth = client.call(status.queue_depth)
    assert (depth.queued, depth.in_progress) == (3, 2)
    assert depth.oldest_age_s is not None
    gate.touch()
    until(lambda: client.call(status.queue_depth) == status.QueueDepth(0, 0, None))


def test_the_oldest_job_is_found_behind_interactive_ones(client: Client, redis: Redis) -> None:
    [oldest, *_] = client.submit_all(["a", "b"])
    redis.hset(keys.job(oldest.id), "enqueued_at", "2026-01-01T00:00:00.000000Z")
    client.submit_all(["c", "d"], lane="interactive")
    age_s = client.call(status.queue_depth).oldest_age_s
    expected = time.time() - 1767225600
    assert age_s == pytest.approx(expected, abs=60)


def test_a_job_s_place_in_the_queue_counts_from_one(client: Client) -> None:
    jobs = client.submit_all(["a", "b", "c"])
    assert [client.fetch(job).queue_position for job in jobs] == [1, 2, 3]
    client.cancel(jobs[0])
    assert [client.fetch(job).queue_position for job in jobs] == [None, 1, 2]


def test_a_process_of_this_host_that_is_gone_does_not_hold_its_slot(client: Client, start_worker: StartWorker) -> None:
    part = start_worker()
    until(lambda: client.call(status.workers))
    part.process.kill()
    part.process.wait()
    again = start_worker()  # long before the lease of 30 s is over
    until(lambda: [w for w in client.call(status.workers) if w.pid == again.process.pid])


def test_a_batch_that_outlasts_the_lease_is_no_standstill(
    client: Client, start_worker: StartWorker, settings_for: Callable[..., Settings], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    running = client.submit(f"hold {gate}")
    start_worker(lease_s=1, heartbeat_s=0.2)
    until(lambda: client.status(running) == "in_progress")
    client.submit("fine")

    async def look() -> tuple[int, str]:
        async with api_client(settings_for(lease_s=1, heartbeat_s=0.2)) as http:
            answer = await http.get("/readyz")
            return answer.status_code, answer.json()["status"]

    until(lambda: client.call(status.workers)[0].last_step_at < time.time() - 1)
    assert asyncio.run(look()) == (200, "ready")
    gate.touch()


def test_a_worker_that_makes_no_step_outside_a_batch_is_a_standstill(
    client: Client, start_worker: StartWorker, settings_for: Callable[..., Settings], redis: Redis
) -> None:
    start_worker(lease_s=1, heartbeat_s=0.2)
    until(lambda: client.call(status.workers))
    [worker] = redis.smembers("rq:workers")
    suspend(redis)  # as `rq suspend` does: the worker takes no batch until `rq resume`
    until(lambda: redis.hget(worker, "state") == b"suspended")
    job = client.submit("fine")

    async def missing() -> list[str]:
        async with api_client(settings_for(lease_s=1, heartbeat_s=0.2)) as http:
            return list((await http.get("/readyz")).json().get("missing", []))

    until(lambda: asyncio.run(missing()) == ["worker_step"])
    assert client.status(job) == "queued"
    resume(redis)
    [ended] = client.until_ended([job])
    assert ended.status == "completed"
