"""A webhook's delivery exists from the moment that its job's end does, and only for the events that were asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from queue_client import Client, Part, until
from redis import Redis
from scripted import Scripted

from worker import keys
from worker.batch_worker import BatchWorker
from worker.deliveries import DELIVERY, PENDING, delivery_id
from worker.jobs import Webhook

Drain = Callable[..., BatchWorker]
SECRET = "whsec_" + "QUFB" * 12
BOTH = ("job.completed", "job.failed")


def webhook(*events: str) -> Webhook:
    return Webhook("https://example.com/hook", events, SECRET)


def deliveries(redis: Redis) -> set[str]:
    return {raw.decode() for raw in redis.zrange(PENDING, 0, -1)}


@pytest.mark.parametrize(
    ("deed", "events", "told"),
    [
        ("fine", BOTH, "job.completed"),
        ("fine", ("job.completed",), "job.completed"),
        ("fine", ("job.failed",), None),
        ("raise", BOTH, "job.failed"),
        ("raise", ("job.failed",), "job.failed"),
        ("raise", ("job.completed",), None),
    ],
)
def test_an_end_has_one_delivery_if_its_event_was_asked_for(
    deed: str, events: Sequence[str], told: str | None, redis: Redis, client: Client, drain: Drain
) -> None:
    job = client.submit(deed, webhook=webhook(*events))
    client.submit(deed)
    drain()
    assert deliveries(redis) == ({delivery_id(job.id, told)} if told else set())
    if told:
        stored = redis.hgetall(DELIVERY + delivery_id(job.id, told))
        assert (stored[b"job_id"].decode(), stored[b"event"].decode()) == (job.id, told)
        assert stored[b"secret"].decode() == SECRET


def test_jobs_that_fail_without_running_are_told_too(redis: Redis, client: Client, drain: Drain) -> None:
    late = client.submit("sleep 60", timeout_s=1, webhook=webhook(*BOTH))
    forged = client.submit("fine", webhook=webhook(*BOTH))
    redis.hset(keys.job(forged.id), "data", "garbage")
    drain()
    assert deliveries(redis) == {delivery_id(job.id, "job.failed") for job in (late, forged)}


def test_a_quarantined_job_is_told(redis: Redis, client: Client, start_worker: Callable[..., Part]) -> None:
    job = client.submit("die", webhook=webhook(*BOTH))
    for _ in range(2):
        start_worker().process.wait(90)
    start_worker()
    client.until_ended([job])
    assert deliveries(redis) == {delivery_id(job.id, "job.failed")}


def test_a_cancelled_job_is_not_told(redis: Redis, client: Client, drain: Drain) -> None:
    queued = client.submit("fine", webhook=webhook(*BOTH))
    client.cancel(queued)

    class Cancels(Scripted):
        def answer(self, questions: Sequence[object]) -> list[object]:  # type: ignore[override]
            thread = threading.Thread(target=client.cancel, args=[running])
            thread.start()
            thread.join()
            return super().answer(questions)  # type: ignore[arg-type, return-value]

    running = client.submit("fine", webhook=webhook(*BOTH))
    drain(Cancels())
    assert client.status(running) == "cancelled"
    assert deliveries(redis) == set()


def test_end_and_delivery_are_one_step(redis: Redis, client: Client, drain: Drain) -> None:
    jobs = client.submit_all(["fine", "raise"], webhook=webhook(*BOTH))
    seen: list[tuple[int, int]] = []
    done = threading.Event()

    def watch() -> None:
        with Redis(connection_pool=redis.connection_pool) as other:
            while not done.is_set():
                with other.pipeline(transaction=True) as pipeline:
                    for job in jobs:
                        pipeline.hget(keys.job(job.id), "ended_at")
                    pipeline.zcard(PENDING)
                    *ended, pending = pipeline.execute()
                seen.append((sum(bool(at) for at in ended), pending))

    thread = threading.Thread(target=watch)
    thread.start()
    drain()
    until(lambda: seen and seen[-1] == (2, 2))
    done.set()
    thread.join()
    assert all(ended == pending for ended, pending in seen)
