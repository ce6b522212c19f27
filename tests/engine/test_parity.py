"""The same answers whichever way the tree is evaluated, and whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import presets
from engine import Engine, Options, Request, Result, StructuredSchema
from engine.broadcast import BroadcastStrategy, SequentialStrategy
from engine.evaluation import Strategy
from engine.request import LAYOUTS, Layout

SMALL_PRESETS = [
    name for name in presets.names() if len(presets.load(name).schema) < 10 and name != "high_cardinality_255"
]


@pytest.fixture
def fresh(engine: Engine) -> Iterator[Engine]:
    """The shared engine with nothing cached; its own strategy is put back afterwards."""
    own = engine.strategy
    engine.forget()
    yield engine
    engine.strategy = own
    engine.forget()


def answer(engine: Engine, *requests: Request) -> list[Result]:
    outcomes = engine.run(requests)
    assert all(isinstance(outcome, Result) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Result)]


def largest_difference(a: Result, b: Result) -> float:
    return max(
        abs(p - q)
        for one, other in zip(a.answers, b.answers, strict=True)
        for p, q in zip(one.probabilities, other.probabilities, strict=True)
    )


def count_model_calls(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the batches of tokens that the model's backbone is called with from now on."""
    calls: list[int] = []
    hidden = engine.model.hidden
    monkeypatch.setattr(
        engine.model, "hidden", lambda tokens, cache: (calls.append(tokens.size), hidden(tokens, cache))[1]
    )
    return calls


@pytest.mark.parametrize("name", presets.names())
def test_packed_broadcast_and_sequential_agree(fresh: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = presets.load(name)
    request = Request(preset.samples[0], preset.schema)
    calls = count_model_calls(fresh, monkeypatch)
    [packed] = answer(fresh, request)
    assert len(calls) == packed.to_dict()["sequential_forward_passes"] == 1
    others: list[Strategy] = [
        BroadcastStrategy(fresh.model, 8192),
        SequentialStrategy(fresh.model, 8192),
    ]
    for strategy in others:
        if name in SMALL_PRESETS:  # the large ones' priors, by packed, are taken as they are: they double the work
            fresh.priors.clear()
        fresh.strategy = strategy
        calls.clear()
        [other] = answer(fresh, request)
        assert largest_difference(packed, other) < 1e-4, strategy.name
        assert len(calls) == other.batch.passes > 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_job_alone_and_in_a_mixed_batch_agree(fresh: Engine, layout: Layout) -> None:
    requests = [
        Request(presets.load(name).samples[i], presets.load(name).schema, Options(layout=layout))
        for i in range(2)
        for name in SMALL_PRESETS
    ]
    requests += [Request(requests[0].context, requests[1].schema, Options(layout=layout))]
    requests += [Request(requests[i].context, requests[0].schema, Options(scoring="branch")) for i in (1, 2, 3)]
    together = answer(fresh, *requests)
    assert len(together) == 8
    assert together[0].batch.passes == 1
    for request, result in zip(requests, together, strict=True):
        fresh.forget()
        [alone] = answer(fresh, request)
        assert largest_difference(alone, result) < 1e-3


def test_in_context_first_siblings_do_not_matter(fresh: Engine) -> None:
    preset = presets.load("code_security")
    context, fields = preset.samples[0], list(preset.schema.items())
    [full] = answer(fresh, Request(context, preset.schema))
    [reordered] = answer(fresh, Request(context, StructuredSchema(dict(reversed(fields)))))
    for name, definition in fields:
        [single] = answer(fresh, Request(context, StructuredSchema({name: definition})))
        for other in (single, reordered):
            assert other.json[name] == full.json[name]
            mine = next(a for a in other.answers if a.name == name)
            theirs = next(a for a in full.answers if a.name == name)
            assert mine.probabilities == pytest.approx(theirs.probabilities, abs=1e-4)


def test_a_tree_larger_than_a_pass_is_split_and_agrees(fresh: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = presets.load("fintech_fraud")
    request = Request(preset.samples[0] * 3, preset.schema)
    [whole] = answer(fresh, request)
    fresh.forget()
    monkeypatch.setattr(fresh.strategy, "pass_tokens", 200)
    calls = count_model_calls(fresh, monkeypatch)
    [split] = answer(fresh, request)
    assert len(calls) == split.batch.passes == -(-whole.usage.tree_tokens // 200) > 2
    assert max(calls) == 200
    assert split.timings.prefill_ms > 0
    assert largest_difference(whole, split) < 1e-4
    [again] = answer(fresh, request)  # the trunk, kept in parts by several passes, is found whole
    assert again.usage.cached_tokens > 400
    assert largest_difference(whole, again) < 1e-4


def test_ten_schemas_over_one_context_read_it_once(fresh: Engine) -> None:
    context = presets.load("support_triage").samples[0]
    schemas = [StructuredSchema({f"f{i}": {"type": "enum", "choices": [f"red {i}", f"blue {i}"]}}) for i in range(10)]
    alone = answer(fresh, Request(context, schemas[0], Options(prior=False)))[0]
    fresh.forget()
    results = answer(fresh, *(Request(context, schema, Options(prior=False)) for schema in schemas))
    assert results[0].batch.contexts == 1
    assert results[0].batch.passes == 1
    context_tokens = len(fresh.tokenizer.text(context))
    assert results[0].batch.shared_tokens >= context_tokens
    assert results[0].batch.computed_tokens < context_tokens + 10 * (alone.usage.tree_tokens - context_tokens) + 10


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cached_trunk_changes_nothing_but_the_work(fresh: Engine, layout: Layout) -> None:
    preset = presets.load("code_security")
    request = Request(preset.samples[0], preset.schema, Options(layout=layout))
    [cold] = answer(fresh, request)
    [warm] = answer(fresh, request)
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens > len(fresh.tokenizer.text(request.context))
    assert warm.usage.tree_tokens < cold.usage.tree_tokens / 2  # the trunk and the prior are known
    assert largest_difference(cold, warm) < 1e-4
    assert fresh.prefix_cache.hits > 0


def test_schema_first_pays_for_the_schema_once(fresh: Engine) -> None:
    preset = presets.load("support_triage")
    options = Options(layout="schema_first", scoring="branch")
    answer(fresh, Request(preset.samples[0], preset.schema, options))
    [second] = answer(fresh, Request(preset.samples[1], preset.schema, options))
    questions = sum(len(fresh.tokenizer.text(f.description)) for f in preset.schema.fields)
    assert second.usage.cached_tokens > questions
