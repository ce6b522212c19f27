"""The claim on the server does what the policy says, and the policy keeps its promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from claim_policy import Lane, Policy, Waiting
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from deploy.embedded import EmbeddedValkey
from worker import documents, keys
from worker.claim import Claims
from worker.jobs import LANE_DIGITS
from worker.tenants import tag

CONTEXT_TOKENS = {"short": 5, "middle": 20, "long": 40}  # by the document's text
TENANTS = ("ada", "bob", "eve")
WINDOW = 2000

abouts = st.tuples(
    st.sampled_from(TENANTS),
    st.sampled_from(["interactive", "bulk", "bulk"]),
    st.sampled_from(sorted(CONTEXT_TOKENS)),
    st.integers(1, 20),  # tokens of the schema
    st.sampled_from([False] * 9 + [True]),  # a crash suspect
)
rounds = st.lists(st.lists(abouts, max_size=8), min_size=1, max_size=8)  # submitted before each claim
limits = st.fixed_dictionaries(
    {"rows": st.integers(1, 6), "tokens": st.integers(1, 150), "interactive_share": st.integers(1, 3)}
)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    folder = tmp_path_factory.mktemp("policy")
    with (
        EmbeddedValkey(folder / "valkey", folder / "v.sock") as server,
        Redis.from_url(server.url) as connection,
    ):
        yield connection


@pytest.fixture(autouse=True)
def empty(redis: Redis) -> None:
    redis.flushall()


class Queue:
    """The queue's list as it should be. `submit` numbers the jobs in the order of their arrival."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self._count = 0

    def submit(self, tenant: str, lane: Lane, text: str, schema: int = 1, suspect: bool = False) -> Waiting:
        document = documents.context_id(text, tenant)[:16]
        job_id = f"{document}-{LANE_DIGITS[lane]}{self._count:031x}"
        job = Waiting(job_id, tenant, lane, document, CONTEXT_TOKENS.get(text, 0), schema, suspect)
        self._count += 1
        self.waiting.insert(0 if lane == "interactive" else len(self.waiting), job)
        return job

    def claimed(self, batch: Sequence[Waiting]) -> None:
        gone = set(batch)
        self.waiting = [job for job in self.waiting if job not in gone]


def push(redis: Redis, jobs: Sequence[Waiting]) -> None:
    """What `jobs.submit` does, without the jobs' records."""
    with redis.pipeline() as pipeline:
        for job in jobs:
            pipeline.hset(keys.COSTS, job.id, f"{job.context},{job.schema}")
            if job.suspect:
                pipeline.hset(keys.CRASHES, job.id, 1)
            if job.lane == "interactive":
                pipeline.lpush(keys.QUEUE_LIST, job.id)
            else:
                pipeline.rpush(keys.QUEUE_LIST, job.id)
                pipeline.sadd(keys.BULK_TENANTS, tag(job.tenant))
        pipeline.execute()


def claims_of(redis: Redis, **changes: int) -> Claims:
    given = {"rows": 32, "tokens": 100_000, "window": WINDOW, "interactive_share": 3, **changes}
    return Claims(redis, "mac", "us", **given)


@settings(max_examples=150, deadline=None)
@given(rounds=rounds, limits=limits)
def test_the_server_claims_what_the_policy_says(rounds: list[list[Any]], limits: dict[str, int], redis: Redis) -> None:
    redis.flushall()
    claims, policy, queue = claims_of(redis, **limits), Policy(**limits), Queue()
    for submitted in [*rounds, [], [], []]:
        push(redis, [queue.submit(*about) for about in submitted])
        expected = policy.claim(queue.waiting)
        assert claims.take() == [job.id for job in expected]
        queue.claimed(expected)
        assert redis.lrange(keys.QUEUE_LIST, 0, -1) == [job.id.encode() for job in queue.waiting]


@settings(max_examples=200, deadline=None)
@given(rounds=rounds, limits=limits)
def test_a_batch_keeps_to_its_limits(rounds: list[list[Any]], limits: dict[str, int]) -> None:
    policy, queue = Policy(**limits), Queue()
    for submitted in rounds:
        for about in submitted:
            queue.submit(*about)
        batch = policy.claim(queue.waiting)
        queue.claimed(batch)
        spent = sum({job.document: job.context for job in batch}.values()) + sum(job.schema for job in batch)
        assert bool(batch) or not queue.waiting
        assert len(batch) <= policy.rows
        assert spent <= policy.tokens or len(batch) == 1
        assert len(batch) == 1 or not any(job.suspect for job in batch)


@settings(max_examples=200, deadline=None)
@given(rounds=rounds, limits=limits)
def test_a_tenants_lane_is_answered_in_order_but_for_jobs_that_join_their_document(
    rounds: list[list[Any]], limits: dict[str, int]
) -> None:
    policy, queue = Policy(**limits), Queue()
    for submitted in rounds:
        for about in submitted:
            queue.submit(*about)
        before = list(queue.waiting)
        batch = policy.claim(queue.waiting)
        queue.claimed(batch)
        for place, job in enumerate(batch):
            older = [o for o in before if (o.tenant, o.lane) == (job.tenant, job.lane) and o.id[18:] < job.id[18:]]
            joined = any(o.document == job.document for o in batch[:place])
            assert joined or set(older) <= set(batch[:place])


@settings(max_examples=200, deadline=None)
@given(rounds=rounds, limits=limits, victim=abouts, ahead=st.integers(0, 3))
def test_no_job_starves_however_many_others_come(
    rounds: list[list[Any]], limits: dict[str, int], victim: Any, ahead: int
) -> None:
    """Every claim has a turn, bulk has one turn in share + 1, and a tenant one in three of its lane's."""
    policy, queue = Policy(**limits), Queue()
    tenant, lane, *_ = victim
    for _ in range(ahead):
        queue.submit(tenant, lane, "short")
    job = queue.submit(*victim)
    turns = (policy.interactive_share + 1) * len(TENANTS) * (ahead + 1)
    for number in range(turns):
        for about in rounds[number % len(rounds)]:
            queue.submit(*about)
        batch = policy.claim(queue.waiting)
        queue.claimed(batch)
        if job in batch:
            return
    raise AssertionError(f"it was not claimed in {turns} batches")


@pytest.mark.parametrize("documents", [1, 5000], ids=["one document", "a document each"])
def test_one_tenants_5000_bulk_jobs_hold_up_nobody_else(documents: int, redis: Redis) -> None:
    queue, claims = Queue(), claims_of(redis)
    push(redis, [queue.submit("ada", "bulk", f"document {number % documents}") for number in range(5000)])
    claims.take()
    single = queue.submit("bob", "bulk", "his")
    push(redis, [single])
    assert single.id in claims.take() + claims.take()
    quick = queue.submit("eve", "interactive", "hers")
    push(redis, [quick])
    assert claims.take()[0] == quick.id
    assert redis.llen(keys.QUEUE_LIST) == 5002 - 4 * 32


def test_bulk_has_a_batch_in_four_under_a_constant_interactive_load(redis: Redis) -> None:
    queue, claims = Queue(), claims_of(redis, rows=4)
    bulk = {queue.submit("ada", "bulk", f"document {number}").id for number in range(10)}
    push(redis, queue.waiting)
    had_bulk = []
    for number in range(24):
        push(redis, [queue.submit("bob", "interactive", f"question {number}") for _ in range(8)])
        had_bulk.append(bool(bulk & set(claims.take())))
    assert all(any(had_bulk[at : at + 4]) for at in range(20))


def test_tenants_share_alike_however_much_each_has_waiting(redis: Redis) -> None:
    queue, claims = Queue(), claims_of(redis, rows=6)
    for tenant, count in (("ada", 3000), ("bob", 30), ("eve", 10)):
        push(redis, [queue.submit(tenant, "bulk", f"document {number}") for number in range(count)])
    tenant_of = {job.id: job.tenant for job in queue.waiting}
    first = [tenant_of[job_id] for _ in range(5) for job_id in claims.take()]
    assert first == ["ada", "bob", "eve"] * 10
    later = [tenant_of[job_id] for _ in range(2) for job_id in claims.take()]
    assert later == ["ada", "bob"] * 6


def test_an_interactive_job_keeps_its_place_behind_more_than_are_read_at_once(redis: Redis) -> None:
    queue, claims = Queue(), claims_of(redis, rows=1, window=2, interactive_share=2)
    bulk = queue.submit("ada", "bulk", "hers")
    quick = [queue.submit("bob", "interactive", f"question {number}") for number in range(5)]
    push(redis, [bulk, *quick])
    order = [claims.take()[0] for _ in range(6)]
    assert order == [job.id for job in (quick[0], quick[1], bulk, quick[2], quick[3], quick[4])]


def test_a_tenant_without_jobs_is_forgotten_and_one_that_is_not_hinted_waits_in_the_lists_order(redis: Redis) -> None:
    queue, claims = Queue(), claims_of(redis, rows=1)
    push(redis, [queue.submit("ada", "bulk", "hers"), queue.submit("bob", "bulk", "his")])
    redis.srem(keys.BULK_TENANTS, tag("bob"))  # as when RQ's own tools queue a job of his again
    assert [claims.take(), claims.take(), claims.take()] == [[job.id] for job in queue.waiting] + [[]]
    assert redis.smembers(keys.BULK_TENANTS) == set()


def test_what_is_remembered_of_turns_goes_after_a_day(redis: Redis) -> None:
    push(redis, [Queue().submit("ada", "bulk", "hers")])
    claims_of(redis).take()
    assert 0 < redis.ttl(keys.TURNS) <= 86_400
