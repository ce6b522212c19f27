"""The Python interface as it is documented: result shapes, timings, errors, and the baseline."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import presets
from engine import Engine, OptionsError, StructuredSchema, run_parallel_generation, stream_naive_generation

CONTEXT = "Checkout has been down for all customers since 09:00, and we lose sales every minute. Call us at once!"
SCHEMA = StructuredSchema(
    {
        "priority": {"type": "enum", "choices": ["P0_CRITICAL", "P1_HIGH", "P2_NORMAL"], "description": "Urgency"},
        "requires_escalation": {"type": "boolean", "description": "Must somebody be called now?"},
    }
)


def test_the_result_has_the_documented_shape(engine: Engine) -> None:
    result = run_parallel_generation(CONTEXT, SCHEMA, engine=engine, top_k=2)
    assert json.loads(json.dumps(result)) == result
    assert set(result) == {
        "mode", "elapsed_ms", "prefill_ms", "suffix_eval_ms", "other_ms", "sequential_forward_passes", "is_valid_json",
        "schema_match", "parsed_json", "field_telemetry", "json", "usage", "provenance",
    }  # fmt: skip
    assert result["mode"] == "parallel_constrained_calibrated"
    assert result["is_valid_json"] is result["schema_match"] is True
    for name, field in SCHEMA.items():
        value, telemetry = result["parsed_json"][name]["value"], result["field_telemetry"][name]
        assert value in field.values
        assert value == telemetry["value"] == result["json"][name] == telemetry["top_choices"][0]["choice"]
        assert result["parsed_json"][name]["prob"] == telemetry["confidence"]
        assert telemetry["cardinality"] == len(field.values)
        assert 0 < telemetry["legal_mass"] <= 1
        assert len(telemetry["top_choices"]) == 2
    usage = result["usage"]
    assert usage["input_tokens"] == usage["cached_tokens"] + usage["tree_tokens"]
    assert result["provenance"] == {
        "model": "smollm2-135m", "strategy": "packed", "layout": "context_first", "scoring": "sequence", "prior": True,
        "schema_id": SCHEMA.schema_id, "prompt_version": 2, "calibration": None, "engine": "0.1.0",
    }  # fmt: skip


def test_the_timings_add_up(engine: Engine) -> None:
    result = run_parallel_generation(CONTEXT, SCHEMA, engine=engine)
    parts = result["prefill_ms"] + result["suffix_eval_ms"] + result["other_ms"]
    assert parts == pytest.approx(result["elapsed_ms"], abs=1)
    assert min(result["prefill_ms"], result["other_ms"]) >= 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"layout": "sideways"}, "layout is 'sideways'"),
        ({"scoring": "vibes"}, "scoring is 'vibes'"),
        ({"truncate": "middle"}, "truncate is 'middle'"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 256}, "top_k is 256"),
        ({"tempreature": 1.0}, "unknown option 'tempreature'"),
    ],
)
def test_bad_options_are_refused(engine: Engine, options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        run_parallel_generation(CONTEXT, SCHEMA, engine=engine, **options)


def test_the_same_request_gives_the_same_answer(engine: Engine) -> None:
    engine.forget()
    first = run_parallel_generation(CONTEXT, SCHEMA, engine=engine)
    engine.forget()
    second = run_parallel_generation(CONTEXT, SCHEMA, engine=engine)
    assert first["field_telemetry"] == second["field_telemetry"]


def test_the_baseline_streams_tokens_and_judges_itself(engine: Engine) -> None:
    *tokens, done = stream_naive_generation(CONTEXT, SCHEMA, engine=engine, max_tokens=60)
    assert done["type"] == "done"
    result = done["result"]
    assert all(event["type"] == "token" for event in tokens)
    assert "".join(event["token"] for event in tokens) == result["raw_text"]
    assert len(tokens) <= result["total_tokens"] <= 60
    assert result["sequential_forward_passes"] >= result["total_tokens"]
    assert result["tokens_per_second"] > 0
    assert result["prefill_ms"] + result["suffix_eval_ms"] == pytest.approx(result["elapsed_ms"], abs=1)
    found = result["parsed_json"]
    assert set(result["missing_keys"]) == set(SCHEMA) - set(found)
    assert set(result["hallucinated_keys"]) == set(found) - set(SCHEMA)
    assert result["schema_match"] == (
        result["is_valid_json"]
        and not (result["missing_keys"] or result["hallucinated_keys"] or result["invalid_values"])
    )


def test_importing_the_package_does_not_load_mlx() -> None:
    program = (
        "import engine, engine.schema, engine.request, sys; sys.exit(any(m.startswith('mlx') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_benchmark_prints_and_writes_its_figures(tmp_path) -> None:
    command = [
        sys.executable,
        "-m",
        "engine.benchmark",
        "--presets",
        "fintech_fraud",
        "--documents",
        "1",
        "--json",
        str(tmp_path / "b.json"),
    ]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    title = presets.load("fintech_fraud").title
    for words in ("started in ", f"{title} (4 fields)", "cold", "warm", "baseline", "speed-up", "step reduction"):
        assert words in printed
    assert "schema match" in printed
    figures = json.loads((tmp_path / "b.json").read_text())
    assert {"machine", "model", "strategy", "results"} <= set(figures)
    [result] = figures["results"]
    assert (result["preset"], result["fields"]) == ("fintech_fraud", 4)
    for state in ("cold", "warm"):
        assert result[state]["passes"] == 1
        assert result[state]["baseline_passes"] > 1
        assert result[state]["schema_match"]["parallel"] is True
    assert result["warm"]["cached_tokens"] > result["cold"]["cached_tokens"] == 0


@pytest.mark.parametrize("arguments", [("--presets", "nothing"), ("--documents", "0"), ("--repeat", "-1")])
def test_the_benchmark_refuses_what_it_does_not_know(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "engine.benchmark", *arguments]
    assert subprocess.run(command, capture_output=True).returncode == 2
