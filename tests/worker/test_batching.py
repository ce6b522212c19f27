"""The main path with the real engine: what is asked about one document together is computed together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest
from queue_client import Client
from redis import Redis

from engine.request import Request
from engine.schema import StructuredSchema
from worker import keys, metrics
from worker.batch_worker import BatchWorker
from worker.job_record import Job
from worker.main import _Measured
from worker.runner import Answer, Question

if TYPE_CHECKING:
    from engine import Engine

Drain = Callable[..., BatchWorker]
CONTEXT = (
    "The server room is on fire, and the sprinklers do not work. Call the fire brigade and then call me back. " * 3
)
SCHEMAS = [
    {f"topic{i}": {"type": "enum", "choices": ["fire", f"choice {i}"], "description": "What?"}} for i in range(10)
]


class Noting(_Measured):
    """The worker's own runner; keeps what it answered."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.batches: list[list[Answer]] = []

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        self.batches.append(super().answer(questions))
        return self.batches[-1]


@pytest.fixture
def runner(engine: Engine) -> Noting:
    engine.forget()
    return Noting(engine)


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"fieldcast_{name}", labels) or 0.0


def computed() -> float:
    return value("prompt_tokens_total", source="computed")


def submit_ten(client: Client, context: str) -> list[Job]:
    return [client.submit(context, schema=schema) for schema in SCHEMAS]


def test_ten_schemas_about_one_context_are_one_batch_that_reads_it_once(
    client: Client, drain: Drain, runner: Noting, engine: Engine
) -> None:
    before = computed(), value("batch_jobs_count"), value("batch_jobs_sum"), value("forward_passes_total")
    jobs = submit_ten(client, CONTEXT)
    drain(runner)
    together = computed() - before[0]
    ended = [client.fetch(job) for job in jobs]
    assert [job.status for job in ended] == ["completed"] * 10
    for job in ended:
        assert job.batch is not None
        assert (job.batch["jobs"], job.batch["contexts"]) == (10, 1)
    assert (value("batch_jobs_count") - before[1], value("batch_jobs_sum") - before[2]) == (1, 10)
    [answers] = runner.batches
    assert answers[0].stats is not None
    assert answers[0].stats.computed_tokens == together
    assert value("forward_passes_total") - before[3] == answers[0].stats.passes

    singly = 0
    for schema in SCHEMAS:
        engine.forget()
        [result] = engine.run([Request(CONTEXT, StructuredSchema(schema))])
        singly += result.batch.computed_tokens  # type: ignore[union-attr]
    tokens_of_context = len(engine.tokenizer.text(CONTEXT))
    # The context is read once, and not ten times. (The chat turn around it and the prior's passes are shared as well.)
    assert together <= singly - 9 * tokens_of_context
    assert all(job.batch["shared_tokens"] >= tokens_of_context for job in ended if job.batch)


def test_an_answer_does_not_depend_on_the_batch(client: Client, drain: Drain, runner: Noting, engine: Engine) -> None:
    jobs = submit_ten(client, "Smoke comes out of the printer.")
    drain(runner)
    engine.forget()
    for job, schema in zip(jobs, SCHEMAS, strict=True):
        [alone] = engine.run([Request("Smoke comes out of the printer.", StructuredSchema(schema))])
        result = client.fetch(job).result
        assert result is not None
        [name] = schema
        expected = alone.to_dict()["parsed_json"][name]  # type: ignore[union-attr]
        assert result["parsed_json"][name]["value"] == expected["value"]
        assert result["parsed_json"][name]["prob"] == pytest.approx(expected["prob"], abs=1e-3)


def test_a_completed_job_says_what_the_contract_lists(client: Client, drain: Drain, runner: Noting) -> None:
    finished = value("jobs_finished_total", preset="support_triage", status="completed")
    low = value("low_confidence_fields_total", preset="support_triage")
    job = client.submit(
        "The app is down.", preset="support_triage", min_confidence=1.0, metadata={"ticket": "7"}, lane="interactive"
    )
    assert (job.status, job.queue_position) == ("queued", 1)
    drain(runner)
    shape = client.fetch(job).to_dict()
    assert shape["status"] == "completed"
    assert shape["error"] is None
    assert shape["attempts"] == 1
    assert shape["metadata"] == {"ticket": "7"}
    assert shape["review"] == ["urgent"]
    assert shape["result"]["json"] == {"urgent": shape["result"]["parsed_json"]["urgent"]["value"]}
    assert set(shape["timings"]) == {"queue_ms", "prefill_ms", "eval_ms", "total_ms"}
    assert all(ms >= 0 for ms in shape["timings"].values())
    assert shape["timings"]["total_ms"] >= shape["timings"]["queue_ms"]
    assert shape["created_at"] <= shape["started_at"] <= shape["finished_at"] < shape["expires_at"]
    assert value("jobs_finished_total", preset="support_triage", status="completed") == finished + 1
    assert value("low_confidence_fields_total", preset="support_triage") == low + 1
    assert value("mlx_memory_bytes", kind="active") > 0


def test_a_context_that_is_too_long_fails_its_job_with_the_numbers(
    client: Client, drain: Drain, runner: Noting, engine: Engine, redis: Redis
) -> None:
    limit = engine.info.context_limit
    long, short = client.submit("fire " * (limit + 100)), client.submit("fire")
    drain(runner)
    failed = client.fetch(long)
    assert (failed.status, failed.result) == ("failed", None)
    assert failed.error is not None
    assert failed.error["type"] == "context_too_long"
    context_tokens, available, named_limit = map(int, re.findall(r"\d+", failed.error["detail"]))
    assert context_tokens == pytest.approx(len(engine.tokenizer.text("fire " * (limit + 100))), abs=2)
    assert available < named_limit == limit < context_tokens
    assert "fire fire" not in str(failed.error)
    assert client.status(short) == "completed"
    assert not redis.exists(keys.STARTED)
