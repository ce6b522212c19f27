"""Ready-made schemas with sample contexts, one JSON file each beside this one. Imports from engine: errors, schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from engine.errors import FieldcastError
from engine.schema import StructuredSchema

__all__ = ["Preset", "UnknownPreset", "load", "names"]

FOLDER = Path(__file__).parent


class UnknownPreset(FieldcastError):
    """No preset has this name."""

    type = "unknown_preset"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no preset {name!r}; the presets are {', '.join(names())}")


@dataclass(frozen=True)
class Preset:
    """A schema by name. `version` rises when the schema changes; each of `samples` is a context to try it on."""

    name: str
    title: str
    description: str
    version: int
    schema: StructuredSchema
    samples: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same shape as the preset's file."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "version": self.version,
            "schema": self.schema.to_dict(),
            "samples": list(self.samples),
        }


class _PresetFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    title: str
    description: str
    version: int = Field(ge=1)
    definition: dict[str, Any] = Field(alias="schema")
    samples: list[str] = Field(min_length=1)


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.json"))}


def names() -> list[str]:
    """The names of all presets, in alphabetical order."""
    return list(_files())


def load(name: str) -> Preset:
    """The preset called `name`. Raises `UnknownPreset`."""
    # Names come from clients: they are looked up among the known ones, never joined to a path.
    if name not in _files():
        raise UnknownPreset(name)
    return _load(name)


@cache
def _load(name: str) -> Preset:
    file = _PresetFile.model_validate_json(_files()[name].read_bytes())
    return Preset(
        name=file.name,
        title=file.title,
        description=file.description,
        version=file.version,
        schema=StructuredSchema(file.definition),
        samples=tuple(file.samples),
    )
