"""Laws of the queue, against the real server: whatever clients and workers do in whatever order, every job that was
acknowledged is in exactly one place, and in the end each has ended exactly once.

The workers are those of this process, step by step: one that crashes is forgotten with all it knew, and its lease ends
when its time is set to be over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from job_history import ended_once
from queue_client import Client, context_of, ids_in, queued_ids
from redis import Redis
from worker_side import Side, expire_leases

from deploy.embedded import EmbeddedValkey
from worker import jobs, keys
from worker.job_record import Job
from worker.jobs import RequeueRefused
from worker.running import Ended, Running

ROWS = 3
SLOTS = ("one", "two")
EXAMPLES = 15  # for each repetition that is asked for
slots = st.sampled_from(SLOTS)
picks = st.integers(0, 100)


@dataclass
class Worker:
    """What a worker's process knows. `up`: it has recovered what the slot's last one left."""

    side: Side
    up: bool = True
    claimed: list[str] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)  # by its last call


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.client, self.redis = Client(url), Redis.from_url(url)
        self.redis.flushall()
        self.jobs: dict[str, Job] = {}  # acknowledged and not deleted
        self.deleted: set[str] = set()
        self.ended: set[str] = set()
        self.lanes: dict[str, str] = {}
        self.workers: dict[str, Worker] = {}
        self.crashes = 0
        self.passes = 0  # interactive jobs since the last bulk job that went past a bulk job

    @initialize(tokens=st.sampled_from([1, 60, 10_000]), window=st.sampled_from([1, 4, 100]), share=st.integers(1, 3))
    def boot_workers(self, tokens: int, window: int, share: int) -> None:
        self.tokens, self.window, self.share = tokens, window, share
        for slot in SLOTS:
            self.redis.sadd(keys.SLOTS, slot)
            self.workers[slot] = self.new_worker(slot)

    def new_worker(self, slot: str) -> Worker:
        limits = {"tokens": self.tokens, "window": self.window, "interactive_share": self.share, "rows": ROWS}
        side = Side(self.redis, slot, f"{slot}.{self.crashes}", **limits)
        self.redis.set(keys.owner(slot), side.name)
        return Worker(side)

    # Clients

    @rule(context=st.sampled_from(["a", "b", "c" * 120]), lane=st.sampled_from(["bulk", "interactive"]))
    def submit(self, context: str, lane: str) -> None:
        job = self.client.submit(context, lane=lane)
        self.jobs[job.id], self.lanes[job.id] = job, lane

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        job = self.picked(pick)
        _, ended_now = self.client.call(jobs.cancel, job.id)
        assert ended_now == (job.id not in self.ended)
        self.ended.add(job.id)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        job = self.picked(pick)
        assert self.client.call(jobs.delete, job.id) is not None
        del self.jobs[job.id]
        self.ended.discard(job.id)
        self.deleted.add(job.id)

    @precondition(lambda self: self.ended)
    @rule(pick=picks)
    def requeue(self, pick: int) -> None:
        job_id = sorted(self.ended)[pick % len(self.ended)]
        completed = self.client.fetch(job_id).status == "completed"
        forgotten = not self.redis.exists(keys.document(context_of(self.redis, job_id)))  # with another job
        if completed or forgotten or self.is_started(job_id):
            with pytest.raises(RequeueRefused):
                self.client.call(jobs.requeue, job_id)
        else:
            self.client.call(jobs.requeue, job_id)
            self.ended.remove(job_id)

    def is_started(self, job_id: str) -> bool:
        return any(entry.startswith(f"{job_id}:") for entry in ids_in(self.redis, keys.STARTED))

    def picked(self, pick: int) -> Job:
        return list(self.jobs.values())[pick % len(self.jobs)]

    # Workers

    @rule(slot=slots, blocking=st.booleans())
    def claim(self, slot: str, blocking: bool) -> None:
        worker = self.workers[slot]
        if not worker.up or worker.claimed or worker.running:
            return
        queued, suspects = queued_ids(self.redis), {raw.decode() for raw in self.redis.hkeys(keys.CRASHES)}
        costs = {raw.decode(): cost.decode().split(",") for raw, cost in self.redis.hgetall(keys.COSTS).items()}
        if blocking and len(queued) == 1:  # it has come while the worker waited
            found = worker.side.claims.wait(0.001)
            assert found == queued
        else:
            found = worker.side.claims.take()
            self.check_turns(queued, found)
        worker.claimed = found
        assert bool(found) == bool(queued)
        assert set(found) <= set(queued)
        assert len(set(found)) == len(found) <= ROWS
        assert len(found) == 1 or not suspects & set(found)
        leaders = _leaders(found)
        tokens = sum(int(costs[i][1]) + (int(costs[i][0]) if i in leaders else 0) for i in found)
        assert tokens <= self.tokens or len(found) == 1

    def check_turns(self, queued: list[str], found: list[str]) -> None:
        """The first job of each context was taken in turn; the others were taken for its sake."""
        for leader in _leaders(found):
            taken = set(found[: found.index(leader)])
            waiting = [job_id for job_id in queued if job_id not in taken]
            bulk = [job_id for job_id in waiting if self.lanes[job_id] == "bulk"]
            if self.lanes[leader] == "bulk":
                assert leader == bulk[0]
                self.passes = 0
            else:
                self.passes = self.passes + 1 if bulk else 0
                assert self.passes <= self.share
                assert leader == [job_id for job_id in waiting if self.lanes[job_id] == "interactive"][-1]

    @rule(slot=slots)
    def start(self, slot: str) -> None:
        worker = self.workers[slot]
        if worker.claimed:
            worker.running, worker.claimed = worker.side.executions.start(worker.claimed), []
            worker.ended = []
            assert not {entry.id for entry in worker.running} & (self.ended | self.deleted)

    @rule(slot=slots)
    def renew(self, slot: str) -> None:
        worker = self.workers[slot]
        if worker.up and (self.redis.get(keys.owner(slot)) or b"").decode() in ("", worker.side.name):
            self.redis.set(keys.owner(slot), worker.side.name)
            with self.redis.pipeline() as pipeline:
                worker.side.executions.renew(worker.running, pipeline)
                pipeline.execute()

    @rule(slot=slots, failed=st.booleans())
    def finish(self, slot: str, failed: bool) -> None:
        worker = self.workers[slot]
        status, value = ("failed", {"error": {"type": "x"}}) if failed else ("completed", {"result": {}})
        worker.ended = [Ended(entry, status, value) for entry in worker.running]
        outcomes = worker.side.executions.finish(worker.ended) if worker.ended else []
        worker.running = []
        self.note_ended(e.running.id for e, outcome in zip(worker.ended, outcomes, strict=True) if outcome == "stored")

    @rule(slot=slots)
    def finish_again(self, slot: str) -> None:
        """The answer was lost, and nothing happened since in this worker."""
        worker = self.workers[slot]
        if worker.ended and not worker.running:
            worker.side.executions.finish(worker.ended)

    @rule(slot=slots)
    def give_back(self, slot: str) -> None:
        worker = self.workers[slot]
        if worker.up:
            worker.side.claims.give_back()
            worker.side.executions.give_back(worker.running)
            worker.claimed, worker.running = [], []

    @rule(slot=slots)
    def lease_ends(self, slot: str) -> None:
        """Of a worker that crashed, or that is stopped and will go on later."""
        self.redis.delete(keys.owner(slot))
        started = [entry.decode() for entry in self.redis.zrange(keys.STARTED, 0, -1)]
        theirs = [e for e in started if (self.worker_of(e) or "").startswith(f"{slot}.")]
        if theirs:
            expire_leases(self.redis, theirs)

    def worker_of(self, entry: str) -> str | None:
        name = self.redis.hget(keys.job(entry.partition(":")[0]), "worker_name")
        return name.decode() if name else None

    @rule(slot=slots)
    def crash(self, slot: str) -> None:
        self.crashes += 1
        self.workers[slot] = self.new_worker(slot)
        self.workers[slot].up = False

    @rule(slot=slots)
    def recover(self, slot: str) -> None:
        """At boot what the slot's last worker left; later what workers left whose leases are over."""
        worker = self.workers[slot]
        if worker.up and (worker.claimed or worker.running):
            return
        worker.side.claims.give_back()
        if worker.up:
            for other in SLOTS:
                worker.side.claims.give_back(other)
        found = worker.side.executions.recover([] if worker.up else [f"{slot}."])
        worker.up = True
        self.note_ended(entry.running.id for entry in found.quarantined)

    def note_ended(self, ids: Iterator[str]) -> None:
        for job_id in ids:
            assert job_id in self.jobs
            assert job_id not in self.ended
            self.ended.add(job_id)

    # Laws

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        queued = queued_ids(self.redis)
        claimed = [job_id for slot in SLOTS for job_id in ids_in(self.redis, keys.claimed(slot))]
        started = [entry.partition(":")[0] for entry in ids_in(self.redis, keys.STARTED)]
        places = queued + claimed + started
        assert set(queued) <= set(self.jobs) - self.ended
        for job_id in self.jobs:
            status = self.redis.hget(keys.job(job_id), "status").decode()
            results = self.redis.xlen(keys.results(job_id))
            if job_id in self.ended:
                assert (status, results) in (("finished", 1), ("failed", 1), ("canceled", 0))
            else:
                assert (places.count(job_id), results) == (1, 0), job_id
                assert status == ("started" if job_id in started else "queued")
        waiting = {job_id.encode() for job_id in set(self.jobs) - self.ended}
        assert set(self.redis.hkeys(keys.COSTS)) == waiting
        assert set(self.redis.hkeys(keys.CRASHES)) <= waiting
        for job_id in self.deleted:
            assert not self.redis.exists(keys.job(job_id), keys.results(job_id))

    def teardown(self) -> None:
        """Every worker dies and comes back; one answers what there is."""
        if self.workers:
            for slot in SLOTS:
                self.crash(slot)
                self.recover(slot)
            expire_leases(self.redis)  # of jobs that were deleted while they ran
            self.recover("one")
            while queued_ids(self.redis):
                self.claim("one", False)
                self.start("one")
                self.finish("one", False)
            assert set(self.jobs) == self.ended
            ended_once(self.redis, self.client, list(self.jobs.values()), most_attempts=100)
        self.redis.close()


def _leaders(found: list[str]) -> list[str]:
    contexts = [job_id.partition("-")[0] for job_id in found]
    return [job_id for i, job_id in enumerate(found) if contexts.index(contexts[i]) == i]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    folder = tmp_path_factory.mktemp("machine")
    with EmbeddedValkey(folder / "valkey", folder / "v.sock") as server:
        yield server


def test_whatever_happens_every_acknowledged_job_ends_once(server: EmbeddedValkey, pytestconfig: pytest.Config) -> None:
    examples = EXAMPLES * pytestconfig.getoption("repetitions")
    run_state_machine_as_test(
        lambda: QueueMachine(server.url),
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
