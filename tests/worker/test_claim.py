"""What a batch is made of, in which order, and what it leaves for the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_client import Client, ids_in, queued_ids
from redis import Redis

from worker import keys
from worker.claim import Claims

TOKENS = 100_000
LONG = "a long document " * 30  # 480 characters: an estimated 160 tokens
NewClaims = Callable[..., Claims]


@pytest.fixture
def new_claims(redis: Redis) -> NewClaims:
    def make(slot: str = "mac", **limits: int) -> Claims:
        return Claims(
            redis, slot, "us", **{"rows": 32, "tokens": TOKENS, "window": 100, "interactive_share": 3, **limits}
        )

    return make


def submit(client: Client, contexts: str, lane: str = "bulk") -> list[str]:
    """Ids of one job for each letter, whose document that letter is."""
    return [job.id for job in client.submit_all(list(contexts), lane=lane)]


def test_jobs_with_the_head_s_context_join_it_and_then_the_next_head_and_its_siblings(
    client: Client, redis: Redis, new_claims: NewClaims
) -> None:
    a1, b1, a2, c1, b2 = submit(client, "abacb")
    assert new_claims().take() == [a1, a2, b1, b2, c1]
    assert queued_ids(redis) == []
    assert ids_in(redis, keys.claimed("mac")) == [a1, a2, b1, b2, c1]


def test_a_batch_has_no_more_rows_than_it_may(client: Client, redis: Redis, new_claims: NewClaims) -> None:
    a1, b1, a2, a3, c1 = submit(client, "abaac")
    claims = new_claims(rows=2)
    assert claims.take() == [a1, a2]
    assert queued_ids(redis) == [b1, a3, c1]
    assert claims.take() == [b1, a3]
    assert claims.take() == [c1]
    assert claims.take() == []


def test_siblings_cost_their_schema_only_and_a_new_context_its_tokens_too(
    client: Client, redis: Redis, new_claims: NewClaims
) -> None:
    documents = [LONG + letter for letter in "aabc"]
    a1, a2, b1, c1 = (job.id for job in client.submit_all(documents))
    context, schema = map(int, redis.hget(keys.COSTS, a1).decode().split(","))
    enough_for_two = 2 * context + 3 * schema
    assert new_claims(tokens=enough_for_two).take() == [a1, a2, b1]
    assert queued_ids(redis) == [c1]


def test_siblings_stop_at_the_token_budget(client: Client, new_claims: NewClaims, redis: Redis) -> None:
    a1, a2, _ = (job.id for job in client.submit_all([LONG] * 3))
    context, schema = map(int, redis.hget(keys.COSTS, a1).decode().split(","))
    assert new_claims(tokens=context + 2 * schema).take() == [a1, a2]


def test_a_job_that_alone_is_over_the_budget_is_taken_by_itself(client: Client, new_claims: NewClaims) -> None:
    big, small = (job.id for job in client.submit_all([LONG, "a"]))
    claims = new_claims(tokens=1)
    assert [claims.take(), claims.take()] == [[big], [small]]


def test_only_the_front_of_the_queue_is_searched_for_siblings(client: Client, new_claims: NewClaims) -> None:
    a1, b1, a2, c1, a3 = submit(client, "abaca")
    claims = new_claims(window=3)
    assert claims.take() == [a1, a2, b1]
    assert claims.take() == [c1, a3]


def test_interactive_jobs_go_first_oldest_first(client: Client, new_claims: NewClaims) -> None:
    bulk = submit(client, "ab")
    quick = submit(client, "cd", lane="interactive")
    assert new_claims().take() == quick + bulk


def test_a_bulk_job_waits_for_no_more_interactive_ones_than_the_share(client: Client, new_claims: NewClaims) -> None:
    [bulk] = submit(client, "a")
    quick = submit(client, "bcde", lane="interactive")
    claims = new_claims(rows=1, interactive_share=2)
    order = [claims.take()[0] for _ in range(5)]
    assert order == [quick[0], quick[1], bulk, quick[2], quick[3]]


def test_bulk_keeps_its_share_while_interactive_jobs_keep_coming(client: Client, new_claims: NewClaims) -> None:
    bulk = submit(client, "abc")
    claims = new_claims(rows=1, interactive_share=2)
    order = []
    for letter in "defghijkl":
        submit(client, letter, lane="interactive")
        order.append("bulk" if claims.take()[0] in bulk else "interactive")
    assert order == ["interactive", "interactive", "bulk"] * 3


def test_a_crash_suspect_runs_alone_and_joins_nobody(client: Client, redis: Redis, new_claims: NewClaims) -> None:
    a1, a2, a3, b1 = submit(client, "aaab")
    redis.hset(keys.CRASHES, a2, 1)
    claims = new_claims()
    assert claims.take() == [
        a1,
        a3,
    ]
    assert claims.take() == [a2]
    assert claims.take() == [b1]


def test_a_crash_suspect_at_the_front_takes_nobody_with_it(client: Client, redis: Redis, new_claims: NewClaims) -> None:
    a1, a2 = submit(client, "aa")
    redis.hset(keys.CRASHES, a1, 1)
    claims = new_claims()
    assert [claims.take(), claims.take()] == [[a1], [a2]]


def test_an_id_that_fieldcast_did_not_make_runs_alone(client: Client, redis: Redis, new_claims: NewClaims) -> None:
    redis.rpush(keys.QUEUE_LIST, "made-by-hand")
    [a1] = submit(client, "a")
    claims = new_claims()
    assert [claims.take(), claims.take()] == [["made-by-hand"], [a1]]


def test_an_empty_queue_gives_nothing_and_waiting_takes_the_next_job_with_its_siblings(
    client: Client, redis: Redis, new_claims: NewClaims
) -> None:
    claims = new_claims()
    assert claims.take() == claims.wait(0.01) == []
    a1, b1, a2 = submit(client, "aba")
    assert claims.wait(1) == [a1, a2, b1]
    assert ids_in(redis, keys.claimed("mac")) == [a1, a2, b1]


def test_claims_are_given_back_to_the_front_in_their_order(client: Client, redis: Redis, new_claims: NewClaims) -> None:
    a1, b1, a2 = submit(client, "aba")
    claims = new_claims(rows=2)
    claims.take()
    assert claims.give_back() == 2
    assert queued_ids(redis) == [a1, a2, b1]
    assert ids_in(redis, keys.claimed("mac")) == []


def test_a_job_that_was_given_back_keeps_its_lane_and_its_cost(
    client: Client, redis: Redis, drain: Callable[..., object], new_claims: NewClaims
) -> None:
    [quick] = submit(client, "a", lane="interactive")
    cost = redis.hget(keys.COSTS, quick)
    new_claims().take()
    new_claims().give_back()
    assert redis.hget(keys.COSTS, quick) == cost
    drain()
    assert redis.hlen(keys.COSTS) == 0
