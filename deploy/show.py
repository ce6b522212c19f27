"""Results as people read them: tables on the terminal. Also the two consoles and JSON output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Progress, beside the results: to standard error."""
    with suppress(OSError):  # a terminal that was closed must not keep anything from being stopped
        err.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


def complain(text: str) -> None:
    err.print(f"[red]fieldcast:[/red] {escape(text)}", soft_wrap=True)


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")


def answers(result: Mapping[str, Any], title: str) -> Table:
    """One row per field: the value, how sure the model is, and the runner-up."""
    table = Table(title=escape(title), title_justify="left", caption_justify="left")
    table.add_column("field")
    table.add_column("answer")
    table.add_column("prob", justify="right")
    table.add_column("next", style="dim")
    for name, telemetry in result["field_telemetry"].items():
        others = [c for c in telemetry["top_choices"] if c["choice"] != telemetry["value"]]
        runner_up = f"{_value(others[0]['choice'])} {others[0]['probability']:.2f}" if others else ""
        table.add_row(
            escape(name), escape(_value(telemetry["value"])), f"{telemetry['confidence']:.3f}", escape(runner_up)
        )
    return table


def timings(result: Mapping[str, Any], queue_ms: float | None = None) -> str:
    """One line: where the time went. `queue_ms`: what a job waited before it was answered."""
    waited = "" if queue_ms is None else f"queue {queue_ms:.0f} ms, "
    return (
        f"{waited}prefill {result['prefill_ms']:.0f} ms, evaluation {result['suffix_eval_ms']:.0f} ms, "
        f"engine in all {result['elapsed_ms']:.0f} ms"
    )


def work(result: Mapping[str, Any]) -> str:
    """One line: what was computed, and by what."""
    usage, made_by, passes = result["usage"], result["provenance"], result["sequential_forward_passes"]
    return (
        f"{passes} forward pass{'' if passes == 1 else 'es'}, {usage['tree_tokens']} tokens computed, "
        f"{usage['cached_tokens']} cached; {made_by['model']}, {made_by['strategy']}, {made_by['layout']}"
    )


def answered(result: Mapping[str, Any], title: str, queue_ms: float | None = None) -> None:
    """A result: its answers, its timings, its work."""
    out.print(answers(result, title))
    for line in (timings(result, queue_ms), work(result)):
        out.print(line, markup=False, soft_wrap=True)


def job(record: Mapping[str, Any]) -> None:
    """A job that has ended: its answers and timings, or its error."""
    if record["status"] == "completed":
        answered(record["result"], f"job {record['id']}", record["timings"]["queue_ms"])
    else:
        error = record.get("error") or {}
        complain(f"the job is {record['status']}: {error.get('title', '')} {error.get('detail', '')}".rstrip())


def figures(quality: Mapping[str, Any]) -> None:
    """What `evaluate` found, one row per field."""
    table = Table(caption=f"{quality['model']}, {quality['records']} records", caption_justify="left")
    for column in ("field", "values", "records", "accuracy", "majority", "log-loss", "Brier", "ECE"):
        table.add_column(column, justify="left" if column == "field" else "right")
    for row in quality["fields"]:
        measured = (row[key] for key in ("accuracy", "majority", "log_loss", "brier", "ece"))
        table.add_row(
            escape(row["field"]), str(row["values"]), str(row["records"]), *(f"{figure:.3f}" for figure in measured)
        )
    out.print(table)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
