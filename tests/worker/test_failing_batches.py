"""A job that breaks, outlives its time-out or hangs takes nobody else with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from queue_client import Client, Part, ids_in, until
from redis import Redis
from scripted import Scripted

from worker import keys, metrics
from worker.batch_worker import BatchWorker
from worker.problems import JobProblem
from worker.runner import Answer, Question

Drain = Callable[..., BatchWorker]
StartWorker = Callable[..., Part]


@pytest.mark.parametrize("poisoned", [[0], [3], [1, 6], range(7)])
def test_a_poison_job_fails_alone(poisoned: Sequence[int], redis: Redis, client: Client, drain: Drain) -> None:
    texts = [f"raise secret-{i}" if i in poisoned else f"fine {i}" for i in range(7)]
    jobs = client.submit_all(texts)
    worker = drain()
    ended = [client.fetch(job) for job in jobs]
    assert [job.status for job in ended] == ["failed" if i in poisoned else "completed" for i in range(7)]
    for i in poisoned:
        problem = ended[i].error
        assert problem is not None
        assert (problem["type"], problem["status"]) == ("internal_error", 500)
        assert "RuntimeError" in problem["detail"]
        assert "secret" not in str(problem)
    assert len(worker._runner.calls[0]) == 7
    assert worker._runner.resets > 0
    assert ids_in(redis, keys.STARTED) == []


def test_what_the_runner_says_of_one_job_is_that_job_s_alone(client: Client, drain: Drain) -> None:
    class Refuses(Scripted):
        def answer(self, questions: Sequence[Question]) -> list[Answer]:
            answers = super().answer(questions)
            return [Answer(None, JobProblem("invalid_context", "no text")), *answers[1:]]

    refused, answered = client.submit_all(["", "fine"])
    drain(Refuses())
    problem = client.fetch(refused).error
    assert problem is not None
    assert problem["type"] == "invalid_context"
    assert client.fetch(answered).batch == {"jobs": 2, "contexts": 2, "passes": 1, "shared_tokens": 0}


def test_a_job_that_outlives_its_time_out_fails_and_its_batch_mates_complete(
    redis: Redis, client: Client, drain: Drain
) -> None:
    mates = client.submit_all(["fine", "fine too"])
    slow = client.submit("sleep 60", timeout_s=1)
    before = metrics.REGISTRY.get_sample_value("fieldcast_job_attempts_total", {"outcome": "timed_out"})
    worker = drain()
    problem = client.fetch(slow).error
    assert problem is not None
    assert (problem["type"], problem["status"]) == ("timed_out", 504)
    assert [client.fetch(job).status for job in mates] == ["completed", "completed"]
    assert worker._runner.calls[0] == ["fine", "fine too", "sleep 60"]
    assert worker._runner.calls[1:] == [["fine", "fine too"], ["sleep 60"]]
    after = metrics.REGISTRY.get_sample_value("fieldcast_job_attempts_total", {"outcome": "timed_out"})
    assert (before or 0) + 1 == after
    assert ids_in(redis, keys.STARTED) == []


def test_a_short_time_out_is_not_used_up_by_slow_batch_mates(client: Client, drain: Drain) -> None:
    slow = client.submit("sleep 2.5")
    short = client.submit("fine", timeout_s=1)
    worker = drain()
    assert [client.status(job) for job in (slow, short)] == ["completed", "completed"]
    assert worker._runner.calls == [["sleep 2.5", "fine"], ["sleep 2.5"], ["fine"]]


def test_a_step_that_never_returns_ends_the_process_and_its_jobs_are_picked_up(
    redis: Redis, client: Client, start_worker: StartWorker
) -> None:
    hangs = client.submit("hang", timeout_s=1)
    mate = client.submit("fine", timeout_s=60)
    quick = {"heartbeat_s": 0.2, "hang_grace_s": 0.5}
    first = start_worker(**quick)
    assert first.process.wait(90) == 70
    assert first.calls == [["hang", "fine"]]
    second = start_worker(**quick)  # the suspects run alone now; the one at the front hangs again
    assert second.process.wait(90) == 70
    start_worker(**quick)
    ended = client.until_ended([hangs, mate])
    assert [job.status for job in ended] == ["failed", "completed"]
    assert ended[0].error is not None
    assert ended[0].error["type"] == "quarantined"


def test_a_long_step_that_is_within_its_time_is_left_alone_and_its_lease_is_renewed(
    redis: Redis, client: Client, start_worker: StartWorker
) -> None:
    job = client.submit("sleep 4")
    part = start_worker(lease_s=2, heartbeat_s=0.3, hang_grace_s=0.2)
    until(lambda: client.status(job) == "in_progress")
    start_worker(slot="other", lease_s=2, heartbeat_s=0.3)
    [ended] = client.until_ended([job])
    assert (ended.status, ended.attempts) == ("completed", 1)
    assert part.calls == [["sleep 4"]]
