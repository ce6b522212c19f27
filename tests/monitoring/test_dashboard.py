"""The dashboard loads in any Grafana and reads right: lint rules of its own, since Grafana itself is not at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from monitoring_files import DASHBOARD, Query, dashboard_queries, function_arguments, plain

KNOWN_UNITS = {"short", "s", "bytes", "percentunit", "reqps", "ops"}


def panels() -> Iterator[dict]:
    yield from (p for p in DASHBOARD["panels"] if p["type"] != "row")


def test_ids_and_titles_are_unique() -> None:
    ids = [p["id"] for p in DASHBOARD["panels"]]
    titles = [p["title"] for p in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("panel", list(panels()), ids=lambda p: p["title"])
def test_every_panel_says_what_it_shows(panel: dict) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in KNOWN_UNITS
    assert panel["targets"]


@pytest.mark.parametrize("panel", list(panels()), ids=lambda p: p["title"])
def test_the_data_source_is_a_variable(panel: dict) -> None:
    variable = next(v for v in DASHBOARD["templating"]["list"] if v["type"] == "datasource")
    for place in (panel, *panel["targets"]):
        assert place["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}


def test_panels_do_not_overlap_and_fit_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24, panel["title"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells


@pytest.mark.parametrize("query", list(dashboard_queries()), ids=str)
def test_ranges_follow_the_zoom(query: Query) -> None:
    assert all(found == "$__rate_interval" for found in re.findall(r"\[([^\]]*)\]", query.expr))


@pytest.mark.parametrize("query", list(dashboard_queries()), ids=str)
def test_used_variables_exist(query: Query) -> None:
    names = {v["name"] for v in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", query.expr)) <= names


@pytest.mark.parametrize("query", list(dashboard_queries()), ids=str)
def test_counters_are_read_as_rates(query: Query) -> None:
    rated = function_arguments(plain(query.expr), {"rate", "increase"})
    for name in re.findall(r"\b\w+_(?:total|bucket|sum|count)\b", query.expr):
        assert query.expr.count(name) == rated.count(name), name
