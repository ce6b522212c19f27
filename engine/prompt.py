"""What the model reads: the three layouts as token paths. Knows words and tokens; imports no mlx.

A prompt is a trunk, the tokens of each field's question below it, and below those the trie of the field's values.
Segments are joined only where tokenising the parts equals tokenising the whole: at special tokens, and between a colon
and the space after it. A value is tokenised together with all the text before it back to such a place, so that it is
always read in its canonical tokens; the line's end tells `P1` from `P10`. An answer reads `Priority: P1` and a newline;
of the wordings tried on labelled records this one was right most often (README, "How good are the answers").
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from engine.errors import ContextTooLong, InvalidContext, Problem, SchemaError
from engine.prompt_tokenizer import PromptTokenizer
from engine.request import Layout, Options, Request, Scoring
from engine.schema import FieldDefinition, StructuredSchema, text_problem
from engine.value_trie import ValueTrie, build_value_trie, distinguishing_prefixes

PROMPT_VERSION = 2  # raise it whenever a prompt's tokens or the prior change: calibrations belong to one version
CONTENT_FREE_CONTEXTS = ("...",)  # of five that were tried on labelled records, right most often on most sets
SYSTEM = "You classify texts."
COMPILED_SCHEMAS = 256  # schemas whose questions and values are kept tokenised


@dataclass(frozen=True)
class FieldPrompt:
    """One field below the trunk. `question` ends before the values' shared tokens."""

    definition: FieldDefinition
    question: tuple[int, ...]
    trie: ValueTrie
    digest: bytes  # of everything the content-free answer depends on: prompts with equal digests share their prior


@dataclass(frozen=True)
class SchemaPrompt:
    """A schema in one layout: everything but the context.

    The trunk is `fixed` tokens, then the tokens of `lead` + context + `trail`, tokenised as one text after `anchor`.
    """

    fixed: tuple[int, ...]
    lead: str
    trail: str
    anchor: str
    fields: tuple[FieldPrompt, ...]

    @property
    def longest_branch(self) -> int:
        return max(
            len(f.question)
            + len(f.trie.shared)
            + max((len(c) for _, c in f.trie.chains), default=0)
            + len(f.trie.chains)
            for f in self.fields
        )


@dataclass(frozen=True)
class Prompt:
    """A request's tokens: the trunk in segments that other requests may share, and the fields."""

    trunk: tuple[tuple[int, ...], ...]
    fields: tuple[FieldPrompt, ...]


class PromptBuilder:
    """Builds prompts for one model. `context_limit` is the most positions the model has."""

    def __init__(self, tokenizer: PromptTokenizer, context_limit: int) -> None:
        self.tokenizer = tokenizer
        self.context_limit = context_limit
        self._turn = tokenizer.chat_turn(SYSTEM)
        self._compile = lru_cache(maxsize=COMPILED_SCHEMAS)(self._compile_uncached)

    def build(self, request: Request) -> Prompt:
        """The prompt of a request. Raises `InvalidContext`, or `ContextTooLong` unless the options say to truncate."""
        problem = text_problem(request.context)
        if problem or not request.context.strip():
            raise InvalidContext(f"the context {problem or 'is empty'}")
        schema = self._compiled(request.schema, request.options)
        return self._place(schema, self._fitted(schema, request.context.strip(), request.options))

    def content_free(self, request: Request) -> list[Prompt]:
        """The request's questions about contexts that say nothing, for the prior."""
        schema = self._compiled(request.schema, request.options)
        return [self._place(schema, context) for context in CONTENT_FREE_CONTEXTS]

    def _compiled(self, schema: StructuredSchema, options: Options) -> SchemaPrompt:
        return self._compile(schema, options.layout, options.scoring, bool(options.show_choices))

    def _place(self, schema: SchemaPrompt, context: str) -> Prompt:
        """A schema's questions about `context`."""
        about = self.tokenizer.text(f"{schema.lead} {context}{schema.trail}", after=schema.anchor)
        return Prompt((schema.fixed, tuple(about)), schema.fields)

    def _fitted(self, schema: SchemaPrompt, context: str, options: Options) -> str:
        """The context, cut if it is too long and the options allow that."""
        if len(context) < self.context_limit - schema.longest_branch - len(schema.fixed) - len(schema.trail) - 64:
            return context  # a token is at least a character, so it fits for certain
        empty = len(schema.fixed) + len(self.tokenizer.text(f"{schema.lead} {schema.trail}", after=schema.anchor))
        available = self.context_limit - empty - schema.longest_branch - 2  # 2: merges at the ends of the context
        used = len(self.tokenizer.text(context))
        if used <= available:
            return context
        if options.truncate == "error" or available <= 0:
            raise ContextTooLong(used, max(available, 0), self.context_limit)
        return self.tokenizer.cut(context, available, options.truncate).strip()

    def _compile_uncached(
        self, schema: StructuredSchema, layout: Layout, scoring: Scoring, show_choices: bool
    ) -> SchemaPrompt:
        turn, encode = self._turn, self.tokenizer.text
        listed = "".join(f"\n{f.name}: {_question(f, show_choices)}" for f in schema.fields)
        if layout == "context_first":
            fixed, lead, trail, anchor = turn.opening, f"{turn.before_user}Text:", "\n\nQuestion:", ""
            questions = [encode(f" {_question(f, show_choices)}{turn.after_user}", after=":") for f in schema.fields]
        elif layout == "schema_first":
            trunk = encode(f"{turn.before_user}Questions:{listed}\n\nText:")
            fixed, lead, trail, anchor = (*turn.opening, *trunk), "", turn.after_user, ":"
            questions = [[] for _ in schema.fields]
        else:
            fixed, lead, anchor = turn.opening, f"{turn.before_user}Text:", ""
            trail = f"\n\nQuestions:{listed}{turn.after_user}"
            questions = [[] for _ in schema.fields]
        fields = []
        for definition, question in zip(schema.fields, questions, strict=True):
            below, trie = (*question, *turn.middle), self._values(definition, scoring)
            read = (fixed, lead, trail, below, trie.shared, trie.parents.tolist(), trie.tokens.tolist())
            fields.append(FieldPrompt(definition, below, trie, hashlib.sha256(repr(read).encode()).digest()))
        return SchemaPrompt(tuple(fixed), lead, trail, anchor, tuple(fields))

    def _values(self, field: FieldDefinition, scoring: Scoring) -> ValueTrie:
        """The trie of the field's values, each with the answer's words before it and the line's end after it."""
        stem = f"{self._turn.before_answer}{_spoken(field.name).capitalize()}:"
        words = ["true", "false"] if field.field_type == "boolean" else scored_texts(field)
        texts = [f"{stem} {_on_one_line(word)}\n" for word in words]
        paths = self.tokenizer.texts(texts, after=self._turn.answer_anchor)
        try:
            return build_value_trie(paths if scoring == "sequence" else distinguishing_prefixes(paths))
        except ValueError as error:  # a tokenizer that drops or folds characters
            raise SchemaError([Problem((field.name,), f"this model cannot tell two values apart: {error}")]) from error


def scored_texts(field: FieldDefinition) -> list[str]:
    """What the model reads in each value's place: the value itself, or its description where the values carry no
    meaning of their own (codes such as `870323`, `XVI` or `B2`) and every one of them has a distinct description."""
    texts = [str(v) for v in field.values]
    described = list(field.choice_descriptions)
    if all(described) and len(set(described)) == len(described) and not any(map(_is_word, texts)):
        return described
    return texts


def _is_word(value: str) -> bool:
    words = re.findall(r"[^\W\d_]{3,}", value)
    return any(not re.fullmatch("[IVXLCDM]+", w) for w in words)


def _question(field: FieldDefinition, show_choices: bool) -> str:
    question = field.description.strip() or f"What is the {_spoken(field.name)}?"
    if not show_choices or field.field_type == "boolean":
        return question
    described = zip(field.values, field.choice_descriptions, strict=True)
    options = "; ".join(f"{value} ({about})" if about else str(value) for value, about in described)
    return f"{question} One of: {options}."


def _spoken(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def _on_one_line(value: str) -> str:
    """The value without line ends, so that no value's line is the beginning of another's."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
