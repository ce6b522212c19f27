"""A law: whatever is submitted, claimed, given back, started and cancelled, every id is in exactly one place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_client import Client, ids_in, queued_ids
from redis import Redis

from deploy.embedded import EmbeddedValkey
from worker import keys
from worker.claim import Claims

ROWS = 3
SLOTS = ("one", "two")

submissions = st.tuples(st.just("submit"), st.sampled_from("abc"), st.sampled_from(["bulk", "interactive"]))
steps = st.lists(
    st.one_of(
        submissions,
        submissions,
        st.tuples(st.just("claim"), st.sampled_from(SLOTS), st.booleans()),
        st.tuples(st.just("give back"), st.sampled_from(SLOTS), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.none()),
        st.tuples(st.just("suspect"), st.integers(0, 20), st.none()),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    folder = tmp_path_factory.mktemp("claims")
    with EmbeddedValkey(folder / "valkey", folder / "v.sock") as server:
        yield server


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=steps,
    tokens=st.sampled_from([1, 60, 10_000]),
    window=st.sampled_from([1, 4, 100]),
    share=st.integers(1, 3),
)
def test_no_id_is_lost_or_duplicated_and_no_claim_exceeds_its_rows(
    server: EmbeddedValkey, steps: list[tuple[str, object, object]], tokens: int, window: int, share: int
) -> None:
    client, submitted, cancelled = Client(server.url), [], set()
    with Redis.from_url(server.url) as redis:
        redis.flushall()
        claims = {
            slot: Claims(redis, slot, slot, rows=ROWS, tokens=tokens, window=window, interactive_share=share)
            for slot in SLOTS
        }
        for step, what, how in steps:
            if step == "submit":
                submitted.append(client.submit(str(what), lane=how))
            elif step == "claim":
                queued = queued_ids(redis)
                found = claims[str(what)].wait(0.001) if how and queued else claims[str(what)].take()
                assert len(found) <= ROWS
                assert len(set(found)) == len(found)
                assert set(found) <= set(queued)
                assert bool(found) == bool(queued)
            elif step == "give back":
                claims[str(what)].give_back()
            elif submitted and step == "cancel":
                job = submitted[int(str(what)) % len(submitted)]
                client.cancel(job)
                cancelled.add(job.id)
            elif submitted:
                redis.hset(keys.CRASHES, submitted[int(str(what)) % len(submitted)].id, 1)
            places = queued_ids(redis) + [i for slot in SLOTS for i in ids_in(redis, keys.claimed(slot))]
            assert len(set(places)) == len(places)
            assert {job.id for job in submitted} - cancelled <= set(places)
            assert not cancelled & set(queued_ids(redis))
