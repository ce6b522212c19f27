"""Redis goes away and comes back: the worker waits for it, and loses and repeats nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from job_history import assert_all_completed, ended_once
from queue_client import Client, Part, ids_in, until
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from worker import keys
from worker.batch_worker import BatchWorker
from worker.main import connect
from worker.settings import Settings

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

StartWorker = Callable[..., Part]


def test_an_idle_worker_outlives_a_restart(
    valkey: EmbeddedValkey, redis: Redis, client: Client, start_worker: StartWorker
) -> None:
    part = start_worker()
    until(lambda: redis.exists(keys.worker("mac")))
    valkey.stop()
    until(lambda: "redis_lost" in part.log)
    valkey.start()
    assert_all_completed(ended_once(redis, client, client.submit_all(["fine", "fine too"])))
    assert part.process.poll() is None


def test_a_batch_that_ends_while_redis_is_away_is_stored_when_it_is_back(
    valkey: EmbeddedValkey, redis: Redis, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = client.submit_all([f"hold {gate}", "fine"])
    part = start_worker()
    until(lambda: client.status(jobs[1]) == "in_progress")
    valkey.stop()
    gate.touch()
    until(lambda: "redis_lost" in part.log)
    valkey.start()
    assert_all_completed(ended_once(redis, client, jobs))
    assert [client.fetch(job).attempts for job in jobs] == [1, 1]
    assert len(part.calls) == 1
    assert part.process.poll() is None


def test_the_worker_s_connection_repeats_no_command_by_itself(
    valkey: EmbeddedValkey, settings_for: Callable[..., Settings]
) -> None:
    redis = connect(settings_for())
    redis.ping()
    valkey.stop()
    with pytest.raises(RedisConnectionError):
        redis.ping()
    with pytest.raises(RedisConnectionError):
        redis.ping()
    redis.close()


def test_a_claim_whose_answer_was_lost_is_found_again(
    redis: Redis, client: Client, new_worker: Callable[..., BatchWorker]
) -> None:
    job = client.submit("fine")
    worker = new_worker()
    worker._claims.take()  # and nobody heard of it
    worker.run_maintenance_tasks()
    assert ids_in(redis, keys.QUEUE_LIST) == [job.id]
    assert ids_in(redis, keys.claimed("mac")) == []


class AnswerLost:
    """A script that runs on the server, but whose first answer does not arrive."""

    def __init__(self, script: Callable[..., object]) -> None:
        self._script, self._lost = script, False

    def __call__(self, **given: object) -> object:
        answer = self._script(**given)
        if not self._lost:
            self._lost = True
            raise RedisConnectionError("connection reset")
        return answer


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
def test_a_step_whose_answer_was_lost_is_done_once(
    step: str, redis: Redis, client: Client, new_worker: Callable[..., BatchWorker]
) -> None:
    jobs = client.submit_all(["fine", "fine too"])
    worker = new_worker()
    part = worker._claims if step == "claim" else worker._transactions
    setattr(part, f"_{step}", AnswerLost(getattr(part, f"_{step}")))
    worker.work(burst=True, logging_level="WARNING")
    assert_all_completed(ended_once(redis, client, jobs))
    assert [sorted(call) for call in worker._runner.calls] == [["fine", "fine too"]]  # recovered jobs come by their ids
