"""Schemas: which questions are asked and which values each may take. Plain Python; imports neither mlx nor numpy.

`StructuredSchema` reads the dict form of a schema (or `FieldDefinition` objects), checks every rule, and reports all
violations at once as a `SchemaError` with one `Problem` per place.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from engine.errors import Problem, SchemaError

FieldType = Literal["enum", "boolean", "score"]
Value = str | bool

FIELD_TYPES: tuple[FieldType, ...] = ("enum", "boolean", "score")
MAX_FIELDS = 400
MIN_CHOICES, MAX_CHOICES = 2, 255
MAX_CHOICE_CHARACTERS = 512
MAX_NAME_CHARACTERS = 256
MAX_DESCRIPTION_CHARACTERS = 4096

_KEYS: dict[FieldType, set[str]] = {
    "enum": {"type", "description", "choices"},
    "boolean": {"type", "description", "choices"},
    "score": {"type", "description", "levels"},
}
_OPEN_ENDED = {"string", "str", "text", "number", "integer", "int", "float", "object", "array"}


@dataclass(frozen=True)
class FieldDefinition:
    """One question.

    `choices` are an enum's values or a score's levels (lowest first), as a list or as a map of value to description;
    a boolean has none, though true and false may be given. Raises `SchemaError` when the field breaks a rule.
    """

    name: str
    field_type: FieldType
    description: str = ""
    choices: Sequence[str] | Mapping[str, str | None] = ()
    choice_descriptions: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        problems = list(_field_problems(self))
        if problems:
            raise SchemaError([Problem((str(self.name), *p.loc), p.msg) for p in problems])
        if self.field_type == "boolean":
            object.__setattr__(self, "choices", ())
        described = dict(self.choices) if isinstance(self.choices, Mapping) else dict.fromkeys(self.choices)
        object.__setattr__(self, "choices", tuple(described))
        object.__setattr__(self, "choice_descriptions", tuple((d or "").strip() for d in described.values()))

    @property
    def values(self) -> tuple[Value, ...]:
        """The values an answer may take, in the schema's order; (True, False) for a boolean."""
        return (True, False) if self.field_type == "boolean" else tuple(self.choices)

    def allows(self, value: object) -> bool:
        """Is `value` one of the field's values? Types count: 1 is not True, and True is not "true"."""
        return any(type(value) is type(allowed) and value == allowed for allowed in self.values)

    def to_dict(self) -> dict[str, Any]:
        """The field in the dict form that `StructuredSchema` reads, without its name."""
        spec: dict[str, Any] = {"type": self.field_type}
        if self.description:
            spec["description"] = self.description
        if self.field_type == "enum" and any(self.choice_descriptions):
            spec["choices"] = dict(zip(self.choices, self.choice_descriptions, strict=True))
        elif self.field_type != "boolean":
            spec["choices" if self.field_type == "enum" else "levels"] = list(self.choices)
        return spec


class StructuredSchema(Mapping[str, FieldDefinition]):
    """An ordered set of fields, 1 to 400 of them.

    `definition` maps each name to its dict form, such as `{"type": "enum", "choices": ["a", "b"]}`, or to a
    `FieldDefinition` of the same name. Raises `SchemaError` naming every field that breaks a rule.
    """

    def __init__(self, definition: Mapping[str, Mapping[str, Any] | FieldDefinition]) -> None:
        if not isinstance(definition, Mapping):
            raise SchemaError([Problem((), "must be an object of field name to field")])
        problems: list[Problem] = []
        if not definition:
            problems.append(Problem((), "has no fields"))
        if len(definition) > MAX_FIELDS:
            problems.append(Problem((), f"has {len(definition)} fields; at most {MAX_FIELDS} are allowed"))
        self._fields: dict[str, FieldDefinition] = {}
        for name, spec in definition.items():
            try:
                self._fields[name] = _read_field(name, spec)
            except SchemaError as error:
                problems += error.problems
        problems += _duplicates(list(map(str, definition)), "field name", ())
        if problems:
            raise SchemaError(problems)

    @property
    def fields(self) -> tuple[FieldDefinition, ...]:
        return tuple(self._fields.values())

    @property
    def schema_id(self) -> str:
        """`sch_` and 16 hex digits of the SHA-256 of the canonical JSON: equal schemas have equal ids."""
        canonical = json.dumps(list(self.to_dict().items()), ensure_ascii=False, separators=(",", ":"))
        return "sch_" + hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The dict form; `StructuredSchema(schema.to_dict())` equals `schema`."""
        return {f.name: f.to_dict() for f in self.fields}

    def __getitem__(self, name: str) -> FieldDefinition:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuredSchema) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.schema_id)

    def __repr__(self) -> str:
        return f"StructuredSchema({self.schema_id}, {len(self)} fields)"


def text_problem(text: object, *, controls_allowed: bool = True) -> str | None:
    """Why `text` cannot be used as text, or None when it can."""
    if not isinstance(text, str):
        return f"must be a string, not {type(text).__name__}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode (it holds half of a surrogate pair)"
    if not controls_allowed and any(unicodedata.category(c) == "Cc" for c in text):
        return "holds a control character"
    return None


def _read_field(name: object, spec: object) -> FieldDefinition:
    def refuse(msg: str, *loc: str) -> SchemaError:
        return SchemaError([Problem((str(name), *loc), msg)])

    if isinstance(spec, FieldDefinition):
        if spec.name != name:
            raise refuse(f"holds a FieldDefinition named {spec.name!r}")
        return spec
    if not isinstance(spec, Mapping):
        raise refuse("must be an object with a type")
    field_type = spec.get("type")
    if field_type is None:
        raise refuse(f"is missing; it must be one of {', '.join(FIELD_TYPES)}", "type")
    if field_type not in FIELD_TYPES:
        why = (
            "is open-ended and cannot be answered from a known set; use"
            if isinstance(field_type, str) and field_type in _OPEN_ENDED
            else "is unknown; use"
        )
        raise refuse(f"{field_type!r} {why} {', '.join(FIELD_TYPES)}", "type")
    known = cast(FieldType, field_type)
    for key in spec:
        if key not in _KEYS[known]:
            raise refuse(f"unknown key; a field of type {known} takes {', '.join(sorted(_KEYS[known]))}", str(key))
    values_key = "levels" if known == "score" else "choices"
    if known != "boolean" and values_key not in spec:
        raise refuse("is missing", values_key)
    description = spec.get("description")
    return FieldDefinition(cast(str, name), known, "" if description is None else description, spec.get(values_key, ()))


def _field_problems(definition: FieldDefinition) -> Iterator[Problem]:
    name_problem = text_problem(definition.name, controls_allowed=False)
    if name_problem:
        yield Problem((), f"the name {name_problem}")
    elif not definition.name.strip():
        yield Problem((), "the name is empty")
    elif len(definition.name) > MAX_NAME_CHARACTERS:
        yield Problem((), f"the name has {len(definition.name)} characters; at most {MAX_NAME_CHARACTERS} are allowed")
    description_problem = text_problem(definition.description)
    if description_problem:
        yield Problem(("description",), description_problem)
    elif len(definition.description) > MAX_DESCRIPTION_CHARACTERS:
        yield Problem(("description",), f"has over {MAX_DESCRIPTION_CHARACTERS} characters")
    if definition.field_type not in FIELD_TYPES:
        yield Problem(("type",), f"{definition.field_type!r} is unknown; use {', '.join(FIELD_TYPES)}")
    elif definition.field_type == "boolean":
        if not _says_true_and_false(definition.choices):
            yield Problem(("choices",), "a boolean takes no choices but true and false")
    else:
        key = "levels" if definition.field_type == "score" else "choices"
        for problem in _choices_problems(definition.choices, definition.field_type):
            yield Problem((key, *problem.loc), problem.msg)


def _says_true_and_false(choices: object) -> bool:
    """Nothing, or both in either order."""
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, bool) for choice in choices):
        return False
    return sorted(choices) in ([], [False, True])


def _choices_problems(choices: object, field_type: FieldType) -> Iterator[Problem]:
    if isinstance(choices, str) or not isinstance(choices, Sequence | Mapping):
        yield Problem(
            (), "must be a list of strings" + (" or a map of string to description" if field_type == "enum" else "")
        )
        return
    if isinstance(choices, Mapping):
        if field_type == "score":
            yield Problem((), "must be a list of strings, lowest first")
            return
        for choice, description in choices.items():
            problem = None if description is None else text_problem(description)
            if problem:
                yield Problem((str(choice),), f"the description {problem}")
            elif description and len(description) > MAX_DESCRIPTION_CHARACTERS:
                yield Problem((str(choice),), f"the description has over {MAX_DESCRIPTION_CHARACTERS} characters")
    if not MIN_CHOICES <= len(choices) <= MAX_CHOICES:
        yield Problem((), f"has {len(choices)} values; {MIN_CHOICES} to {MAX_CHOICES} are allowed")
    if len(choices) > MAX_CHOICES:
        return
    for index, choice in enumerate(choices):
        problem = text_problem(choice)
        if problem is None and not choice.strip():
            problem = "is empty"
        elif problem is None and len(choice) > MAX_CHOICE_CHARACTERS:
            problem = f"has {len(choice)} characters; at most {MAX_CHOICE_CHARACTERS} are allowed"
        if problem:
            yield Problem((index,), problem)
    yield from _duplicates([c for c in choices if text_problem(c) is None], "value", ())


def _duplicates(texts: list[str], noun: str, loc: tuple[str, ...]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for text in texts:
        normal = unicodedata.normalize("NFC", text)
        if normal in seen:
            yield Problem(loc, f"{noun} {text!r} appears twice (after Unicode NFC)")
        seen[normal] = text
