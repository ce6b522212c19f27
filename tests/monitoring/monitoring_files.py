"""What deploy/ gives to Prometheus and Grafana, read for the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PROMETHEUS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())


@dataclass(frozen=True)
class Query:
    where: str
    expr: str

    def __str__(self) -> str:
        return self.where


def dashboard_queries() -> Iterator[Query]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"{panel['title']}/{target['refId']}", target["expr"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric = variable["query"]["query"].removeprefix("label_values(").split(",")[0]
            yield Query(
                f"variable {variable['name']}", metric if "rate(" in metric else f"rate({metric}[$__rate_interval])"
            )


def rules() -> Iterator[dict[str, Any]]:
    for group in ALERTS["groups"]:
        yield from group["rules"]


def rule_queries() -> Iterator[Query]:
    for rule in rules():
        yield Query(rule["alert"], rule["expr"])


def plain(expr: str) -> str:
    """The expression as Prometheus gets it, with Grafana's variables filled in."""
    return expr.replace("$__rate_interval", "5m").replace("$preset", ".*")


def selectors(expr: Any) -> Iterator[Any]:
    """Every vector selector in a parsed expression, in order."""
    if isinstance(expr, promql_parser.VectorSelector):
        yield expr
    elif isinstance(expr, promql_parser.MatrixSelector):
        yield expr.vector_selector
    for child in _children(expr):
        yield from selectors(child)


def function_arguments(expr: str, functions: set[str]) -> list[str]:
    """Names of the metrics that are arguments of one of these functions."""
    return [s.name for call in _calls(promql_parser.parse(expr), functions) for s in selectors(call)]


def _calls(expr: Any, functions: set[str]) -> Iterator[Any]:
    if isinstance(expr, promql_parser.Call) and expr.func.name in functions:
        yield expr
        return
    for child in _children(expr):
        yield from _calls(child, functions)


def _children(expr: Any) -> list[Any]:
    if isinstance(expr, promql_parser.BinaryExpr):
        return [expr.lhs, expr.rhs]
    if isinstance(expr, promql_parser.Call):
        return list(expr.args)
    if isinstance(expr, promql_parser.AggregateExpr):
        return [expr.expr, *([expr.param] if expr.param is not None else [])]
    if isinstance(expr, promql_parser.ParenExpr | promql_parser.UnaryExpr | promql_parser.SubqueryExpr):
        return [expr.expr]
    return []
