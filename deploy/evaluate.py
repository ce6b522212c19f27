"""`fieldcast evaluate`: labelled records answered in this process, and how good the answers were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import track

from deploy import show
from deploy.run import BadInput, read_schema, read_text
from engine.errors import FieldcastError, InvalidContext, OptionsError
from engine.quality import Tally
from engine.request import Options, Request
from engine.schema import StructuredSchema, Value
from engine.settings import ModelSettings

RECORDS_AT_ONCE = 8  # in one Engine.run


def read_records(path: Path, schema: StructuredSchema, limit: int | None) -> list[tuple[str, Mapping[str, Value]]]:
    """Documents and their labels, one JSON object `{"context": ..., "labels": {field: value}}` a line. Labels of fields
    that the schema lacks are left out, and so are records without any label. Raises BadInput naming the line."""
    records: list[tuple[str, Mapping[str, Value]]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            context, labels = record["context"], dict(record["labels"])
            if not isinstance(context, str):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadInput(f'{path}, line {number}: not an object with "context" and "labels"') from None
        known = {name: label for name, label in labels.items() if name in schema}
        for name, label in known.items():
            if not schema[name].allows(label):
                raise BadInput(f"{path}, line {number}: {label!r} is not a value of {name}")
        if known:
            records.append((context, known))
    if not records:
        raise BadInput(f"{path} has no record with a label of one of the schema's fields")
    return records[:limit]


def evaluate(
    schema_path: Path, data: Path, limit: int | None, how: Mapping[str, Any], settings: ModelSettings
) -> dict[str, Any]:
    """Answers all records; the figures. Raises BadInput for what the command line names."""
    schema = read_schema(schema_path)
    try:
        options = Options(**how)
    except OptionsError as error:
        raise BadInput(str(error)) from None
    records = read_records(data, schema, limit)
    from engine.engine import Engine

    engine = Engine.load(settings.model, settings=settings, progress=show.say)
    tallies = {f.name: Tally(f.name, f.values) for f in schema.fields}
    starts = range(0, len(records), RECORDS_AT_ONCE)
    for start in track(starts, "answering", console=show.err, disable=not show.err.is_terminal, transient=True):
        some = records[start : start + RECORDS_AT_ONCE]
        outcomes = engine.run([Request(context, schema, options) for context, _ in some])
        for number, ((_, labels), outcome) in enumerate(zip(some, outcomes, strict=True), start + 1):
            if isinstance(outcome, FieldcastError):
                raise InvalidContext(f"record {number}: {outcome}")
            for answer in outcome.answers:
                if answer.name in labels:
                    tallies[answer.name].add(answer.probabilities, labels[answer.name])
    figures = [tally.quality() for tally in tallies.values() if len(tally)]
    return {
        "model": engine.info.model,
        "prompt_version": engine.info.prompt_version,
        "layout": options.layout,
        "scoring": options.scoring,
        "records": len(records),
        "macro_accuracy": sum(f.accuracy for f in figures) / len(figures),
        "fields": [f.to_dict() for f in figures],
    }
