"""From claimed jobs to answers: makes the engine's requests and shapes what comes back. No Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import FieldcastError
from engine.request import Options, Request
from engine.result import BatchStats, Result
from engine.schema import StructuredSchema
from worker.problems import PAYLOAD_INVALID, JobProblem, problem_of

if TYPE_CHECKING:
    from engine.engine import Engine


@dataclass(frozen=True)
class Question:
    """One job's document and what is asked about it, as they were enqueued."""

    context: str
    schema: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """One job's outcome: the public result and what the run says of itself, or the problem in their place."""

    result: dict[str, Any] | None
    problem: JobProblem | None
    stats: BatchStats | None = None
    prefill_ms: float | None = None
    eval_ms: float | None = None

    def confidences(self) -> dict[str, float]:
        """Field name to the probability of its value."""
        fields = (self.result or {}).get("parsed_json", {})
        return {name: answer["prob"] for name, answer in fields.items()}


class Answerer(Protocol):
    """What the worker asks. `answer` may raise: then the worker tries smaller parts of the batch. `reset` is called
    after an interrupted or failed call, before the next one."""

    def answer(self, questions: Sequence[Question]) -> list[Answer]: ...
    def reset(self) -> None: ...


class Runner:
    """Answers whole batches with one `Engine.run` call."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """One answer per question, in order. Questions that cannot be read never reach the engine."""
        requests = [_request(question) for question in questions]
        outcomes = iter(self.engine.run([r for r in requests if isinstance(r, Request)]))
        return [Answer(None, r) if isinstance(r, JobProblem) else _answer(next(outcomes)) for r in requests]

    def reset(self) -> None:
        self.engine.forget()


def answer(payload: Mapping[str, Any]) -> None:
    """The name under which jobs are enqueued. The worker batches payloads and never calls it."""
    raise RuntimeError("Fieldcast jobs are run by Fieldcast's own worker; start one with `fieldcast worker`")


def _request(question: Question) -> Request | JobProblem:
    try:
        return Request(question.context, StructuredSchema(question.schema), Options(**question.options))
    except FieldcastError as error:
        return problem_of(error)
    except (TypeError, ValueError):
        return PAYLOAD_INVALID


def _answer(outcome: Result | FieldcastError) -> Answer:
    if isinstance(outcome, FieldcastError):
        return Answer(None, problem_of(outcome))
    timings = outcome.timings
    return Answer(outcome.to_dict(), None, outcome.batch, timings.prefill_ms, timings.suffix_eval_ms)
