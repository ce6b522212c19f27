"""Tokenises prompts so that user text stays text and every part is read in its canonical tokens. Imports no mlx.

Two encoders over one vocabulary: `markup` knows the model's special tokens and sees only the chat template; `text`
does not know them, so a context that contains `<|im_end|>` is six characters of text, never a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tokenizers import Tokenizer

from engine.errors import ModelUnsupported

# The day that a template is told when it asks (Llama's own stand-in): answers must not change overnight.
TEMPLATE_DATE = datetime(2024, 7, 26)
_USER = "\x02user\x03"  # stands in for the user message while the chat template is rendered


@dataclass(frozen=True)
class ChatTurn:
    """The chat template around one system and one user message, cut at the messages and at special tokens.

    In order: `opening` | text(`before_user` + user message + `after_user`) | `middle` | text(`before_answer` + answer).
    Where no special token stands between the user's message and the answer, `middle` is empty, and the answer's text
    follows the text `answer_anchor`; otherwise that is empty.
    """

    opening: tuple[int, ...]
    before_user: str
    after_user: str
    middle: tuple[int, ...]
    before_answer: str
    answer_anchor: str


class PromptTokenizer:
    """Wraps a fast Hugging Face tokenizer. Raises `ModelUnsupported` when it has no fast backend."""

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelUnsupported("the model's tokenizer has no fast backend (tokenizer.json); Fieldcast needs one")
        self._tokenizer = tokenizer
        description = json.loads(backend.to_str())
        added = description.get("added_tokens") or []
        special = [t["content"] for t in added if t["content"].strip()]
        description["added_tokens"] = [t for t in added if not t["content"].strip()]
        description["post_processor"] = description["truncation"] = description["padding"] = None
        self._text = Tokenizer.from_str(json.dumps(description))
        self._markup = backend
        pattern = "|".join(re.escape(s) for s in sorted(special, key=len, reverse=True))
        self._special = re.compile(pattern) if pattern else re.compile(r"(?!)")

    def text(self, text: str, after: str = "") -> list[int]:
        """Tokens of user text that follows the text `after` (whose own tokens are left out)."""
        return self.texts([text], after)[0]

    def texts(self, texts: Sequence[str], after: str = "") -> list[list[int]]:
        """As `text`, for many at once."""
        skip = len(self._text.encode(after, add_special_tokens=False).ids) if after else 0
        encoded = self._text.encode_batch_fast([after + t for t in texts], add_special_tokens=False)
        return [e.ids[skip:] for e in encoded]

    def markup(self, text: str) -> list[int]:
        """Tokens of template text, special tokens recognised."""
        return list(self._markup.encode(text, add_special_tokens=False).ids)

    def cut(self, text: str, tokens: int, keep: str) -> str:
        """The first (`keep` = "head") or last ("tail") `tokens` tokens of `text`, as text."""
        offsets = self._text.encode(text, add_special_tokens=False).offsets
        if len(offsets) <= tokens:
            return text
        if tokens <= 0:
            return ""
        return text[: offsets[tokens - 1][1]] if keep == "head" else text[offsets[-tokens][0] :]

    @property
    def end_tokens(self) -> set[int]:
        """Tokens that end a turn."""
        end = self._tokenizer.eos_token_id
        return set(end) if isinstance(end, list) else {end}

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens)))

    def chat_turn(self, system: str) -> ChatTurn:
        """The model's chat template around `system` and a user message, with "thinking" switched off."""
        rendered = self.render(system, _USER)
        head, _, tail = rendered.partition(_USER)
        opening, before_user = self._after_last_special(head)
        first = self._special.search(tail)
        after_user, rest = (tail, "") if first is None else (tail[: first.start()], tail[first.start() :])
        middle, before_answer = self._after_last_special(rest)
        anchor = "" if middle else after_user[-1:]
        if anchor and not anchor.isspace():
            before_answer = " "
        return ChatTurn(
            tuple(self.markup(opening)), before_user, after_user, tuple(self.markup(middle)), before_answer, anchor
        )

    def render(self, system: str, user: str) -> str:
        """The prompt as one string, up to where the answer begins. `user` is template text here, not user text."""
        if not getattr(self._tokenizer, "chat_template", None):
            return f"{self._tokenizer.bos_token or ''}{system}\n\n{user}\n\nAnswer:"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            rendered = self._apply(messages)
        except Exception:  # jinja errors of templates without a system role have no common type
            rendered = ""
        if system not in rendered or user not in rendered:
            rendered = self._apply([{"role": "user", "content": f"{system}\n\n{user}"}])
        return rendered

    def _apply(self, messages: list[dict[str, str]]) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                chat_template=_fixed_date() + self._tokenizer.get_chat_template(),
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
        )

    def _after_last_special(self, text: str) -> tuple[str, str]:
        """`text` cut behind its last special token."""
        end = max((m.end() for m in self._special.finditer(text)), default=0)
        return text[:end], text[end:]


def _fixed_date() -> str:
    """A template's first words: a macro in place of the `strftime_now` that transformers gives to templates."""
    parts = "".join(f"|replace('%{c}', '{TEMPLATE_DATE.strftime(f'%{c}')}')" for c in "AaBbdHIjMmpSYy")
    return "{% macro strftime_now(format) %}{{ format" + parts + " }}{% endmacro %}"
