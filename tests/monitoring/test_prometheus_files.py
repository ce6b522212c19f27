"""The scrape configuration and the alert rules are valid, fire when they should, and say what to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest
from monitoring_files import DEPLOY, PROMETHEUS, Query, dashboard_queries, plain, rule_queries, rules

from worker.settings import Settings

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt: prometheus)")


@pytest.mark.parametrize("query", [*dashboard_queries(), *rule_queries()], ids=str)
def test_every_expression_parses(query: Query) -> None:
    promql_parser.parse(plain(query.expr))


@pytest.mark.parametrize("rule", list(rules()), ids=lambda r: r["alert"])
def test_every_rule_says_how_bad_it_is_and_what_to_do(rule: dict) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["for"]
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")


def test_the_ports_scraped_are_the_default_ones() -> None:
    settings = Settings()
    targets = {s["job_name"]: s["static_configs"][0]["targets"] for s in PROMETHEUS["scrape_configs"]}
    assert targets == {
        "fieldcast-api": [f"127.0.0.1:{settings.port}"],
        "fieldcast-worker": [f"127.0.0.1:{settings.worker_metrics_port}"],
        "fieldcast-webhooks": [f"127.0.0.1:{settings.webhooks_metrics_port}"],
    }


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", DEPLOY / "prometheus" / "prometheus.yml"),
        ("check", "rules", DEPLOY / "prometheus" / "alerts.yml"),
        ("test", "rules", Path(__file__).with_name("alerts_test.yml")),
    ],
    ids=lambda a: f"{a[0]} {a[1]}",
)
def test_promtool_agrees(arguments: tuple[str, str, Path]) -> None:
    done = subprocess.run([str(PROMTOOL), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
