"""A batch's token budget follows the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from queue_client import Client
from scripted import Scripted

from worker.batch_worker import BatchWorker
from worker.runner import Answer, Question
from worker.step_budget import LEAST_TOKENS, StepBudget


def test_it_is_the_setting_until_a_step_was_seen() -> None:
    assert StepBudget(6000, target_s=5).tokens == 6000


def test_a_slow_machine_gets_smaller_batches_and_a_fast_one_the_setting() -> None:
    budget = StepBudget(6000, target_s=5)
    budget.observe(6000, 10)
    assert budget.tokens == 3000
    for _ in range(30):
        budget.observe(3000, 0.1)
    assert budget.tokens == 6000


def test_small_steps_say_nothing_about_the_speed() -> None:
    budget = StepBudget(6000, target_s=5)
    budget.observe(10, 60)
    assert budget.tokens == 6000


@given(
    most=st.integers(1, 100_000),
    target_s=st.floats(0.01, 100),
    steps=st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 1000))),
)
def test_it_never_leaves_its_bounds(most: int, target_s: float, steps: list[tuple[int, float]]) -> None:
    budget = StepBudget(most, target_s)
    for tokens, seconds in steps:
        budget.observe(tokens, seconds)
        assert min(most, LEAST_TOKENS) <= budget.tokens <= most


@given(speeds=st.lists(st.floats(500, 5000), min_size=1))
def test_a_step_of_that_size_keeps_to_the_target_at_the_slowest_speed_seen(speeds: list[float]) -> None:
    budget = StepBudget(10**6, target_s=5)
    for speed in speeds:
        budget.observe(10_000, 10_000 / speed)
    assert min(speeds) * 5 <= budget.tokens + 1 <= max(speeds) * 5 + 2


def test_the_next_claim_keeps_to_it(client: Client, new_worker: Callable[..., BatchWorker]) -> None:
    """Jobs of some 925 tokens each."""
    worker = new_worker(batch_tokens=8000, step_target_s=0.5)
    client.submit_all([f"{number} " + "x" * 2700 for number in range(16)])
    assert len(worker._claims.take()) == 8
    worker._claims.tokens = LEAST_TOKENS
    assert len(worker._claims.take()) == LEAST_TOKENS // 925


def test_steps_are_observed(client: Client, drain: Callable[..., BatchWorker]) -> None:
    class Slow(Scripted):
        def answer(self, questions: Sequence[Question]) -> list[Answer]:
            answers = super().answer(questions)
            time.sleep(0.1)
            return [replace(a, stats=replace(a.stats, computed_tokens=1000)) for a in answers if a.stats]

    client.submit("fine")
    worker = drain(Slow(), batch_tokens=100_000, step_target_s=1)
    assert LEAST_TOKENS < worker._claims.tokens <= 10_000
