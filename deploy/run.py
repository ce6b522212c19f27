"""`fieldcast run`: one document answered in this process. Imports the engine, and with it mlx, only to answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import presets
from deploy import show
from engine.errors import FieldcastError, OptionsError, SchemaError
from engine.request import Options, Request
from engine.schema import StructuredSchema
from engine.settings import ModelSettings


class BadInput(FieldcastError):
    """What the command line names cannot be used."""

    type = "bad_input"


def read_request(
    preset: str | None, schema_path: Path | None, context: str | None, options: Mapping[str, Any]
) -> Request:
    """From the command line's words. Raises BadInput."""
    if (preset is None) == (schema_path is None):
        raise BadInput("give exactly one of --preset NAME and --schema FILE")
    sample: str | None = None
    try:
        if preset is not None:
            loaded = presets.load(preset)
            schema, sample = loaded.schema, loaded.samples[0]
        else:
            assert schema_path is not None
            schema = read_schema(schema_path)
        return Request(_read_context(context, sample), schema, Options(**options))
    except (presets.UnknownPreset, OptionsError) as error:
        raise BadInput(str(error)) from None


def run(request: Request, settings: ModelSettings, *, as_json: bool) -> int:
    """Prints the answers; returns the exit code."""
    from engine.engine import Engine

    engine = Engine.load(settings.model, settings=settings, progress=show.say)
    result = engine.answer(request).to_dict()
    if as_json:
        show.print_json(result)
    else:
        count = len(request.schema.fields)
        show.answered(result, f"{count} field{'' if count == 1 else 's'}")
    return 0


def read_schema(path: Path) -> StructuredSchema:
    """The schema that a JSON file is, or holds as `schema` (a preset) or `fields`. Raises BadInput."""
    try:
        definition = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise BadInput(f"{path} nests too deep") from None
    try:
        return StructuredSchema(_unwrapped(definition))
    except SchemaError as error:
        raise BadInput(f"{path}: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file. Raises BadInput."""
    try:
        return _text(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def _unwrapped(definition: Any) -> Any:
    for key in ("schema", "fields"):
        inner = definition.get(key) if isinstance(definition, dict) else None
        if isinstance(inner, dict) and "type" not in inner:  # with a type it is a field of that name
            return inner
    return definition


def _read_context(context: str | None, sample: str | None) -> str:
    if context is None and sys.stdin.isatty():
        if sample is None:
            raise BadInput("give the document with --context FILE, or --context - to type it")
        show.say("no --context: answering the preset's first sample")
        return sample
    if context is None or context == "-":
        return _text(sys.stdin.buffer.read(), "standard input")
    return read_text(Path(context))


def _text(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if not text.strip():
        raise BadInput(f"{source} is empty")
    return text
