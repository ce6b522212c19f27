"""`python -m engine.benchmark`: every preset, answered in parallel and by the autoregressive baseline, in one run.

Cold: nothing cached. Warm: the schema was seen before, on both sides (ours: priors and trunk; the baseline: its prompt
up to the context). Times are medians over documents and repeats. Wall times mean little on a shared machine; the ratios
and counts of one run are what to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import presets
from engine import baseline
from engine.engine import Engine
from engine.errors import FieldcastError
from engine.request import LAYOUTS, Options, Request
from engine.settings import ModelSettings


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0; 1 when the model cannot be had or used; 2 on bad usage."""
    parser = argparse.ArgumentParser(prog="python -m engine.benchmark", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=presets.names(), choices=presets.names(), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="times each document is answered (default 1)"
    )
    parser.add_argument("--documents", type=int, metavar="N", help="only the first N samples of each preset")
    parser.add_argument("--strategy", choices=("packed", "broadcast"), help="default: what the check at load chooses")
    parser.add_argument("--layout", choices=LAYOUTS, default="context_first")
    parser.add_argument("--no-baseline", action="store_true", help="leave out the autoregressive baseline")
    chosen = parser.parse_args(arguments)
    if chosen.repeat < 1 or (chosen.documents is not None and chosen.documents < 1):
        parser.error("--repeat and --documents must be at least 1")
    try:
        engine = Engine.load(settings=ModelSettings(**({"strategy": chosen.strategy} if chosen.strategy else {})))
    except FieldcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{engine.info.model} on {engine.info.device} ({engine.info.blas}), {engine.info.strategy}, {chosen.layout}\n"
        f"started in {stages(engine.info.startup_ms)}\n"
    )
    results = []
    for name in chosen.presets:
        preset = presets.load(name)
        documents = list(preset.samples[: chosen.documents]) * chosen.repeat
        results.append(measure(engine, preset, documents, chosen.layout, not chosen.no_baseline))
        print(report(results[-1]), flush=True)
    if chosen.json:
        figures = {
            "machine": machine(),
            "model": engine.info.model,
            "strategy": engine.info.strategy,
            "results": results,
        }
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def stages(startup_ms: dict[str, float]) -> str:
    """The time that a start took, in all and by stage."""
    each = ", ".join(f"{stage.replace('_', ' ')} {ms / 1e3:.1f} s" for stage, ms in startup_ms.items())
    return f"{sum(startup_ms.values()) / 1e3:.1f} s ({each})"


def measure(
    engine: Engine, preset: presets.Preset, documents: list[str], layout: str, with_baseline: bool
) -> dict[str, Any]:
    """One preset's figures: `cold` and `warm`, each in the shape of the public contract."""
    requests = [
        Request(document, preset.schema, Options(layout=layout))  # type: ignore[arg-type]  # checked by Options
        for document in documents
    ]
    engine.forget()
    engine.answer(requests[0])  # compiles what there is to compile, and is not counted
    trunk = baseline.Trunk(engine, preset.schema) if with_baseline else None
    cold, warm = [], []
    for request in requests:
        engine.forget()
        cold.append(_one(engine, request, with_baseline, None))
    engine.forget()
    engine.answer(requests[-1])  # the schema is known from here on
    for request in requests:
        warm.append(_one(engine, request, with_baseline, trunk))
    return {
        "preset": preset.name,
        "title": preset.title,
        "fields": len(preset.schema),
        "layout": layout,
        "cold": _medians(cold),
        "warm": _medians(warm),
    }


def _one(engine: Engine, request: Request, with_baseline: bool, trunk: baseline.Trunk | None) -> dict[str, Any]:
    result = engine.answer(request)
    figures: dict[str, Any] = {
        "parallel_ms": result.timings.elapsed_ms,
        "passes": result.batch.passes,
        "tree_tokens": result.usage.tree_tokens,
        "cached_tokens": result.usage.cached_tokens,
        "schema_match": {"parallel": set(result.json) == set(request.schema)},
    }
    if with_baseline:
        *_, done = baseline.stream(engine, request.context, request.schema, trunk=trunk)
        naive = done["result"]
        figures |= {
            "baseline_ms": naive["elapsed_ms"],
            "baseline_tokens": naive["total_tokens"],
            "baseline_passes": naive["sequential_forward_passes"],
            "speedup": naive["elapsed_ms"] / result.timings.elapsed_ms,
            "step_reduction": naive["sequential_forward_passes"] / result.batch.passes,
        }
        figures["schema_match"]["baseline"] = naive["schema_match"]
    return figures


def _medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        key: round(median(run[key] for run in runs), 2) for key in runs[0] if key != "schema_match"
    }
    figures["schema_match"] = {side: all(r["schema_match"][side] for r in runs) for side in runs[0]["schema_match"]}
    return figures


def report(result: dict[str, Any]) -> str:
    """A preset's figures as the lines that are printed."""
    lines = [f"{result['title']} ({result['fields']} field{'s' if result['fields'] > 1 else ''})"]
    for state in ("cold", "warm"):
        figures = result[state]
        lines.append(f"  {state}")
        if "baseline_ms" in figures:
            rate = figures["baseline_tokens"] / (figures["baseline_ms"] / 1e3)
            lines.append(
                f"    baseline  {figures['baseline_ms']:9.1f} ms  {figures['baseline_tokens']:6.0f} tokens  "
                f"{rate:6.1f} tok/s  {figures['baseline_passes']:5.0f} passes"
            )
        lines.append(
            f"    parallel  {figures['parallel_ms']:9.1f} ms  {figures['tree_tokens']:6.0f} tokens computed, "
            f"{figures['cached_tokens']:.0f} cached  passes: {figures['passes']:.0f}"
        )
        match = ", ".join(f"{side} {'yes' if ok else 'no'}" for side, ok in sorted(figures["schema_match"].items()))
        if "speedup" in figures:
            lines.append(f"    speed-up {figures['speedup']:.2f}x, step reduction {figures['step_reduction']:.1f}x")
        lines.append(f"    schema match: {match}")
    return "\n".join(lines) + "\n"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "mlx": metadata.version("mlx"),
    }


if __name__ == "__main__":
    sys.exit(main())
