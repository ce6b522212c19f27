"""The baseline: the same model writes the JSON answer token by token, with mlx-lm's own generation loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from engine.schema import FieldDefinition, StructuredSchema

if TYPE_CHECKING:
    from engine.engine import Engine

SYSTEM = "You fill in a JSON form about a text."
PREFILL_STEP = 512  # tokens of the prompt in one model call


def stream(
    engine: Engine, context: str, schema: StructuredSchema, max_tokens: int | None = None, trunk: Trunk | None = None
) -> Iterator[dict[str, Any]]:
    """Yields token events and one done event; see `engine.generate.stream_naive_generation`.

    trunk: the prompt up to the context, already read; None: read it here.
    """
    started = perf_counter()
    start = trunk or Trunk(engine, schema, read=False)
    prompt = start.rest(context)
    step = generate_step(
        mx.array(prompt),
        engine.model.model,
        max_tokens=max_tokens or start.longest_answer,
        prompt_cache=start.cache(),
        prefill_step_size=PREFILL_STEP,
    )
    tokens: list[int] = []
    text = ""
    prefill_ms = 0.0
    for token, _ in step:
        if not tokens:
            prefill_ms = (perf_counter() - started) * 1e3
        tokens.append(int(token))
        if int(token) in start.end_tokens:
            break
        longer = engine.tokenizer.decode(tokens)
        yield {"type": "token", "token": longer[len(text) :]}
        text = longer
        if _first_object(text) is not None:
            break
    elapsed_ms = (perf_counter() - started) * 1e3
    # The prompt's chunks but its last token, then one call per token; the last token's own call is never needed.
    chunks = -(-(len(prompt) - 1) // PREFILL_STEP)
    yield {
        "type": "done",
        "result": {
            "mode": "naive_autoregressive",
            "elapsed_ms": elapsed_ms,
            "prefill_ms": prefill_ms,
            "suffix_eval_ms": elapsed_ms - prefill_ms,
            "other_ms": 0.0,
            "sequential_forward_passes": chunks + len(tokens),
            "total_tokens": len(tokens),
            "tokens_per_second": len(tokens) / (elapsed_ms / 1e3),
            "raw_text": text,
            **_judge(text, schema),
        },
    }


class Trunk:
    """The baseline's prompt up to the context: the schema comes first, so that a stream of documents can share it."""

    def __init__(self, engine: Engine, schema: StructuredSchema, read: bool = True) -> None:
        self._engine = engine
        self._turn = engine.tokenizer.chat_turn(SYSTEM)
        text = engine.tokenizer.text(f"{self._turn.before_user}{_instructions(schema)}\n\nText:")
        self.tokens = [*self._turn.opening, *text]
        longest = {f.name: max(map(str, f.values), key=len) for f in schema.fields}
        self.longest_answer = 2 * len(engine.tokenizer.text(json.dumps(longest, ensure_ascii=False, indent=2)))
        self.end_tokens = engine.tokenizer.end_tokens
        self._read: list[tuple[mx.array, mx.array]] | None = None
        if read:
            cache = make_prompt_cache(engine.model.model)
            for start in range(0, len(self.tokens), PREFILL_STEP):
                engine.model.hidden(mx.array(self.tokens[start : start + PREFILL_STEP])[None], cache)
                mx.eval([layer.state for layer in cache])
            self._read = [layer.state for layer in cache]

    def cache(self) -> list[Any]:
        """A prompt cache of its own for one answer."""
        cache = make_prompt_cache(self._engine.model.model)
        for layer, state in zip(cache, self._read or [], strict=False):
            layer.state = tuple(mx.array(part) if isinstance(part, mx.array) else part for part in state)
        return cache

    def rest(self, context: str) -> list[int]:
        """The prompt's tokens that are not in the cache."""
        tokenizer, turn = self._engine.tokenizer, self._turn
        rest = [
            *tokenizer.text(f" {context.strip()}{turn.after_user}", after=":"),
            *turn.middle,
            *tokenizer.text(turn.before_answer),
        ]
        return rest if self._read else [*self.tokens, *rest]


def _instructions(schema: StructuredSchema) -> str:
    lines = [f'"{f.name}": {_allowed(f)}' + (f"  ({f.description})" if f.description else "") for f in schema.fields]
    return "Answer with one JSON object with exactly these keys and allowed values:\n" + "\n".join(lines)


def _allowed(field: FieldDefinition) -> str:
    if field.field_type == "boolean":
        return "true or false"
    described = zip(field.values, field.choice_descriptions, strict=True)
    return " or ".join(json.dumps(v, ensure_ascii=False) + (f" ({about})" if about else "") for v, about in described)


def _judge(text: str, schema: StructuredSchema) -> dict[str, Any]:
    """What of the text can be used: its JSON object, and what is missing, made up or not allowed."""
    found = _first_object(text)
    answer = found if found is not None else {}
    invalid = {k: v for k, v in answer.items() if k in schema and not schema[k].allows(v)}
    missing = [name for name in schema if name not in answer]
    made_up = [name for name in answer if name not in schema]
    return {
        "is_valid_json": found is not None,
        "schema_match": found is not None and not (invalid or missing or made_up),
        "parsed_json": answer,
        "missing_keys": missing,
        "hallucinated_keys": made_up,
        "invalid_values": invalid,
    }


def _first_object(text: str) -> dict[str, Any] | None:
    """The first whole JSON object in `text`."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
