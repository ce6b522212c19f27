"""`python -m deploy.queue_benchmark`: what the queue costs a job, beside RQ's own worker, in one run.

Both workers answer the same number of jobs by doing nothing, on an embedded server of the benchmark's own. A round trip
is one send to the server. Measured from the first answer to the last, so that starting and stopping a worker is not in
it: between two answers lie the end of one batch and the start of the next.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from redis import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.asyncio import Redis as AsyncRedis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from deploy.embedded import EmbeddedValkey
from engine.request import Options
from engine.result import BatchStats
from engine.schema import StructuredSchema
from worker import jobs
from worker.batch_worker import BatchWorker
from worker.jobs import JobSpec
from worker.runner import Answer, Question
from worker.settings import Settings

BATCHES = (1, 8, 20, 32)  # jobs
DOCUMENTS = 5
SCHEMA = StructuredSchema({"urgent": {"type": "boolean", "description": "Is it urgent?"}})
RESULT = {"parsed_json": {"urgent": {"value": True, "prob": 0.9}}, "json": {"urgent": True}}


@dataclass(frozen=True)
class Cost:
    """Of one job."""

    round_trips: float
    ms: float


class _CountedConnection(UnixDomainSocketConnection):
    sends = 0  # of all connections

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        _CountedConnection.sends += 1
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


_answers: list[tuple[int, int, float]] = []  # of a run: jobs, sends so far, seconds


def _note(jobs: int) -> None:
    _answers.append((jobs, _CountedConnection.sends, time.perf_counter()))


class _Idle:
    """Answers at once."""

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        _note(len(questions))
        stats = BatchStats(len(questions), 1, 1, computed_tokens=0, cached_tokens=0, shared_tokens=0)
        return [Answer(RESULT, None, stats, prefill_ms=0.0, eval_ms=0.0) for _ in questions]

    def reset(self) -> None:
        pass


def idle(payload: dict[str, Any]) -> dict[str, Any]:
    """What RQ's own worker runs."""
    _note(1)
    return RESULT


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.queue_benchmark", description=__doc__)
    parser.add_argument("--jobs", type=int, default=320, metavar="N", help="jobs per measurement (default 320)")
    chosen = parser.parse_args(arguments)
    if chosen.jobs < max(BATCHES):
        parser.error(f"--jobs must be at least {max(BATCHES)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v.sock"
        with EmbeddedValkey(Path(folder) / "valkey", path) as server:
            print(f"{chosen.jobs} jobs about {DOCUMENTS} documents; per job:\n")
            print("jobs a batch   round trips: ours    RQ    ms: ours     RQ   RQ's time over ours")
            for rows in BATCHES:
                ours = _ours(server.url, path, chosen.jobs, rows)
                stock = _stock(path, chosen.jobs)
                print(
                    f"{rows:12}   {ours.round_trips:17.2f} {stock.round_trips:5.1f}   {ours.ms:8.3f} {stock.ms:6.3f}"
                    f"   {stock.ms / ours.ms:19.1f}",
                    flush=True,
                )
    return 0


def _ours(url: str, path: Path, count: int, rows: int) -> Cost:
    settings = Settings(redis_url=url, data_dir=path.parent, worker_slot="bench", batch_rows=rows)

    async def submit() -> None:
        async with AsyncRedis.from_url(url) as redis:
            for number in range(count):
                context = f"Document {number % DOCUMENTS}."
                await jobs.submit(redis, JobSpec(context, SCHEMA, None, Options(), None, "bulk", 60, 60, {}, None))

    asyncio.run(submit())
    with _connect(path) as redis:
        worker = BatchWorker(redis, settings, _Idle(), "bench", {"model": "none"})
        return _cost(lambda: worker.work(burst=True, logging_level="ERROR"))


def _stock(path: Path, count: int) -> Cost:
    with _connect(path) as redis:
        queue = Queue("stock", connection=redis, serializer=JSONSerializer)
        for number in range(count):
            queue.enqueue(f"{__name__}.idle", {"context": f"Document {number % DOCUMENTS}."}, result_ttl=60)
        worker = SimpleWorker([queue], connection=redis, serializer=JSONSerializer)
        return _cost(lambda: worker.work(burst=True, logging_level="ERROR"))


def _cost(work: Callable[[], object]) -> Cost:
    _answers.clear()
    work()
    (_, first_sends, start), *_, (last_jobs, sends, end) = _answers
    done = sum(jobs for jobs, _, _ in _answers) - last_jobs
    return Cost((sends - first_sends) / done, (end - start) * 1e3 / done)


def _connect(path: Path) -> Redis:
    pool = ConnectionPool(connection_class=_CountedConnection, path=str(path), socket_timeout=None)
    return Redis(connection_pool=pool)


if __name__ == "__main__":
    # RQ imports `idle` from this module by its name, which must be the module that measures.
    from deploy import queue_benchmark

    raise SystemExit(queue_benchmark.main())
