"""What the dashboard and the rules name is what a running service shows; and it shows no client's text."""

from __future__ import annotations

import re
import shutil
import subprocess

import promql_parser
import pytest
from monitoring_files import Query, dashboard_queries, plain, rule_queries, selectors

import presets

SYNTHETIC = {"up"}  # made by Prometheus itself for every target
LABELS_OF_PROMETHEUS = {"job", "instance"}
LABELS = {"preset", "status", "reason", "outcome", "phase", "source", "state", "kind", "route", "method", "le"}
LABELS |= {"version", "model", "strategy"}
_CONTRACT = """
jobs_submitted_total jobs_finished_total jobs_rejected_total job_attempts_total job_duration_seconds_bucket
batch_jobs_bucket batch_tokens_bucket forward_passes_total prompt_tokens_total queue_jobs queue_oldest_job_age_seconds
worker_up worker_last_step_timestamp_seconds mlx_memory_bytes prefix_cache_bytes prefix_cache_hits_total
field_confidence_bucket low_confidence_fields_total webhook_attempts_total webhook_pending http_requests_total
http_request_duration_seconds_bucket build_info
"""


def matches(matcher: object, labels: dict[str, str]) -> bool:
    name, value, op = matcher.name, matcher.value, str(matcher.op)
    found = labels.get(name, "")
    return {
        "MatchOp.Equal": found == value,
        "MatchOp.NotEqual": found != value,
        "MatchOp.Re": re.fullmatch(value, found) is not None,
        "MatchOp.NotRe": re.fullmatch(value, found) is None,
    }[op]


@pytest.mark.parametrize("query", [*dashboard_queries(), *rule_queries()], ids=str)
def test_every_named_series_is_in_a_live_scrape(query: Query, scrapes: dict) -> None:
    samples = [sample for scrape in scrapes.values() for sample in scrape.samples()]
    for selector in selectors(promql_parser.parse(plain(query.expr))):
        if selector.name in SYNTHETIC:
            continue
        wanted = [m for m in selector.matchers.matchers if m.name not in LABELS_OF_PROMETHEUS]
        # An error status need not have happened; that its label exists is enough.
        wanted = [m for m in wanted if selector.name != "fieldcast_http_requests_total" or m.name not in {"status"}]
        same_name = [s for s in samples if s.name == selector.name]
        assert same_name, f"no part shows {selector.name}"
        assert [s for s in same_name if all(matches(m, s.labels) for m in wanted)], selector.prettify()


@pytest.mark.parametrize("name", _CONTRACT.split())
def test_the_contract_s_series_are_shown(name: str, scrapes: dict) -> None:
    assert any(s.name == f"fieldcast_{name}" for scrape in scrapes.values() for s in scrape.samples())


def test_the_work_done_is_counted(scrapes: dict) -> None:
    def value(part: str, name: str, **labels: str) -> float:
        (sample,) = [
            s for s in scrapes[part].samples() if s.name == f"fieldcast_{name}" and labels.items() <= s.labels.items()
        ]
        return sample.value

    assert value("api", "jobs_submitted_total", preset="support_triage") == 1
    assert value("api", "jobs_rejected_total") == 1
    assert value("api", "queue_jobs", state="queued") == 0
    assert value("worker", "jobs_finished_total", preset="support_triage", status="completed") == 1
    assert value("api", "jobs_finished_total", preset="support_triage", status="cancelled") == 0
    assert value("worker", "job_duration_seconds_count", preset="support_triage", phase="total") == 1
    assert value("worker", "field_confidence_count", preset="support_triage") == 28
    assert value("worker", "batch_jobs_sum") == 1
    assert value("worker", "forward_passes_total") >= 1
    assert value("worker", "prompt_tokens_total", source="computed") > 100
    assert value("worker", "worker_up") == 1
    assert value("worker", "mlx_memory_bytes", kind="peak") > 0
    assert value("api", "http_requests_total", route="/v1/jobs", method="POST", status="202") == 1
    assert value("api", "http_requests_total", route="unmatched", method="GET", status="404") == 1
    assert value("api", "http_request_duration_seconds_count", route="/v1/jobs/{job_id}") >= 1


def test_labels_are_from_a_known_set(scrapes: dict) -> None:
    for scrape in scrapes.values():
        for sample in scrape.samples():
            if not sample.name.startswith("fieldcast_"):
                continue
            assert set(sample.labels) <= LABELS, sample
            assert sample.labels.get("preset", "custom") in {*presets.names(), "custom"}
            route = sample.labels.get("route", "unmatched")
            assert route == "unmatched" or not re.search(r"\d{2}", route), sample


@pytest.mark.parametrize("part", ["api", "worker", "webhooks"])
def test_every_process_shows_its_own_cpu_and_memory(part: str, scrapes: dict) -> None:
    names = {s.name for s in scrapes[part].samples()}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"} <= names


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt: prometheus)")
@pytest.mark.parametrize("part", ["api", "worker", "webhooks"])
def test_promtool_finds_nothing_to_say_about_the_metrics(part: str, scrapes: dict) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scrapes[part].text, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
