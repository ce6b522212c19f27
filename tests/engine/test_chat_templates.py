"""The turn that a prompt is put into, with the real templates of several families."""

from __future__ import annotations

from datetime import datetime

import pytest
from packaged_tokenizers import FAMILIES, packaged_tokenizer

from engine import prompt_tokenizer
from engine.prompt_tokenizer import PromptTokenizer

SYSTEM = "You classify texts."


@pytest.fixture(params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest) -> PromptTokenizer:
    return PromptTokenizer(packaged_tokenizer(request.param))


EXPECTED = {
    "qwen2_5": "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n",
    # Thinking is over before it began.
    "qwen3": "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n",
    "llama3_2": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: 26 Jul 2024\n\n{system}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    # No system role: the instruction opens the user's message.
    "gemma3": "<bos><start_of_turn>user\n{system}\n\n{user}<end_of_turn>\n<start_of_turn>model\n",
    # No chat template at all.
    "yi": "<|startoftext|>{system}\n\n{user}\n\nAnswer:",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_asked_in_its_own_words(family: str) -> None:
    rendered = PromptTokenizer(packaged_tokenizer(family)).render(SYSTEM, "Hello")
    assert rendered == EXPECTED[family].format(system=SYSTEM, user="Hello")


def test_the_parts_of_a_turn_are_the_whole(tokenizer: PromptTokenizer) -> None:
    turn = tokenizer.chat_turn(SYSTEM)
    user = tokenizer.text(f"{turn.before_user}Hello, world{turn.after_user}")
    answer = tokenizer.text(f"{turn.before_answer}Topic: billing\n", after=turn.answer_anchor)
    space = " " if turn.answer_anchor else ""
    whole = tokenizer.markup(f"{tokenizer.render(SYSTEM, 'Hello, world')}{space}Topic: billing\n")
    assert [*turn.opening, *user, *turn.middle, *answer] == whole


def test_a_prompt_does_not_change_with_the_day(monkeypatch: pytest.MonkeyPatch, tokenizer: PromptTokenizer) -> None:
    today = tokenizer.render(SYSTEM, "Hello")
    assert str(datetime.now().year) not in today
    monkeypatch.setattr(prompt_tokenizer, "TEMPLATE_DATE", datetime(2031, 1, 2))
    assert tokenizer.render(SYSTEM, "Hello") == today.replace("26 Jul 2024", "02 Jan 2031")
