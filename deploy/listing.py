"""The commands that only show something: `config`, `models`, `presets`; and `models pull`. Imports no mlx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr
from pydantic_core import to_jsonable_python
from rich.markup import escape
from rich.table import Table

import presets
from deploy import show
from engine.models.builtin import BUILTIN, available, folder
from engine.settings import ModelSettings
from worker.settings import Settings

HIDDEN = "********"


def config(settings: Settings, *, as_json: bool) -> None:
    """Every setting; secrets are hidden."""
    rows: list[dict[str, Any]] = [
        {
            "name": f"FIELDCAST_{name.upper()}",
            "value": _shown(getattr(settings, name), secret=not field.repr),
            "set": name in settings.model_fields_set,
            "description": field.description or "",
        }
        for name, field in type(settings).model_fields.items()
    ]
    if as_json:
        show.print_json(rows)
        return
    table = Table()
    table.add_column("setting", no_wrap=True)
    for column in ("value", "from", "meaning"):
        table.add_column(column, overflow="fold")
    for row in rows:
        source = "environment" if row["set"] else "default"
        table.add_row(row["name"], escape(str(row["value"])), source, escape(row["description"]))
    show.out.print(table)


def models(settings: Settings, *, as_json: bool) -> None:
    """The built-in models, and the one in use when it is another."""
    ready = available(settings.data_dir)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "title": model.title,
            "license": model.license,
            "built_in": True,
            "ready": ready[name],
            "in_use": name == settings.model,
            "path": str(folder(name, settings.data_dir)) if ready[name] else None,
        }
        for name, model in BUILTIN.items()
    ]
    if settings.model not in BUILTIN:
        local = Path(settings.model).expanduser()
        rows.append(
            {
                "name": settings.model,
                "title": "local folder" if local.is_dir() else "from the model hub",
                "license": None,
                "built_in": False,
                "ready": local.is_dir() or in_hub_cache(settings.model),
                "in_use": True,
                "path": str(local.resolve()) if local.is_dir() else None,
            }
        )
    if as_json:
        show.print_json(rows)
        return
    table = Table()
    for column in ("model", "what", "licence", "ready", "in use"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            escape(row["name"]),
            escape(row["title"]),
            row["license"] or "",
            "yes" if row["ready"] else "no: fieldcast models pull",
            "yes" if row["in_use"] else "",
        )
    show.out.print(table)


def in_hub_cache(model: str) -> bool:
    """Whether the hub's own cache on this machine knows the model (not: whether all its files are there)."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except HFValidationError:
        return False


def pull(model: str, settings: ModelSettings, *, as_json: bool) -> None:
    """Downloads and converts what is missing. Raises ModelUnavailable."""
    from engine.models.locate import locate

    if show.err.is_terminal:
        with show.err.status(f"getting {escape(model)}") as status:
            found = locate(model, settings.data_dir, lambda text: status.update(escape(text)))
    else:
        found = locate(model, settings.data_dir, show.say)
    if as_json:
        show.print_json({"name": found.name, "path": str(found.path)})
    else:
        show.out.print(f"{found.name} is ready in {found.path}", markup=False, soft_wrap=True)


def presets_list(*, as_json: bool) -> None:
    loaded = [presets.load(name) for name in presets.names()]
    if as_json:
        show.print_json(
            [
                {
                    "name": p.name,
                    "title": p.title,
                    "description": p.description,
                    "version": p.version,
                    "fields": len(p.schema.fields),
                }
                for p in loaded
            ]
        )
        return
    table = Table()
    table.add_column("preset")
    table.add_column("fields", justify="right")
    table.add_column("what it asks", overflow="fold")
    for one in loaded:
        table.add_row(one.name, str(len(one.schema.fields)), escape(f"{one.title}: {one.description}"))
    show.out.print(table)


def preset(name: str, *, as_json: bool) -> None:
    """Raises UnknownPreset."""
    one = presets.load(name)
    record = one.to_dict()
    if as_json:
        show.print_json(record)
        return
    show.out.print(f"[bold]{escape(one.title)}[/bold] ({one.name}, version {one.version})\n{escape(one.description)}")
    table = Table()
    for column in ("field", "type", "choices", "question"):
        table.add_column(column, overflow="fold")
    for field, definition in record["schema"].items():
        table.add_row(
            escape(field),
            definition["type"],
            escape(", ".join(_choices(definition))),
            escape(str(definition.get("description") or "")),
        )
    show.out.print(table)
    show.out.print(f"[bold]First sample[/bold]\n{escape(one.samples[0])}")


def _choices(definition: Mapping[str, Any]) -> list[str]:
    return [str(choice) for choice in definition.get("choices") or definition.get("levels") or ()]


def _shown(value: object, *, secret: bool) -> object:
    if value and (secret or isinstance(value, SecretStr)):
        return HIDDEN
    plain: object = to_jsonable_python(value)
    return _without_password(plain) if isinstance(plain, str) and "://" in plain else plain


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", f":{HIDDEN}@")))
