"""What a batch costs in round trips: one each to claim, start and finish it, however many jobs it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from queue_client import Client
from redis import Redis
from redis.connection import AbstractConnection

from worker.batch_worker import BatchWorker

Drain = Callable[..., BatchWorker]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first command of everything that is sent to the server."""
    commands: list[str] = []
    send_packed = AbstractConnection.send_packed_command

    def note(self: AbstractConnection, command: object, *args: object, **kwargs: object) -> None:
        packed = command if isinstance(command, bytes) else b"".join(command)  # type: ignore[arg-type]
        commands.append(packed.split(b"\r\n")[2].decode())
        send_packed(self, command, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", note)
    return commands


def trips(sent: list[str], act: Callable[[], object]) -> Counter[str]:
    before = len(sent)
    act()
    return Counter(sent[before:])


@pytest.mark.parametrize("jobs", [1, 10, 32])
def test_a_batch_is_claimed_started_and_finished_in_one_round_trip_each(
    jobs: int, client: Client, drain: Drain, new_worker: Callable[..., BatchWorker], sent: list[str]
) -> None:
    client.submit("warm")
    drain()  # the server knows the scripts now
    worker = new_worker()
    client.submit_all([f"fine {number % 3}" for number in range(jobs)], webhook=None)
    claimed: list[str] = []
    assert trips(sent, lambda: claimed.extend(worker._claims.take())) == {"EVALSHA": 1}
    assert len(claimed) == jobs
    assert trips(sent, lambda: worker.execute_job(claimed, worker.queues[0])) == {"EVALSHA": 2}


def test_a_job_is_submitted_looked_at_and_cancelled_in_one_round_trip_each(client: Client, redis: Redis) -> None:
    def commands(name: str) -> int:
        stats = redis.info("commandstats")
        return int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"])

    job = client.submit("fine")
    assert commands("exec") == 1
    client.fetch(job)
    assert commands("exec") == 2
    client.cancel(job)
    assert (commands("eval"), commands("exec")) == (1, 3)
