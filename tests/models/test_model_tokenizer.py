"""The tokenizer made from the GGUF is the model's own: byte level, each digit alone, the chat template."""

from __future__ import annotations

import unicodedata

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models import LoadedModel

# The pre-tokenizer `smollm` as llama.cpp states it: the second pattern within what the first one leaves.
DIGIT = regex.compile(r"\p{N}")
PIECE = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

WITHOUT_TOKEN = "\x04\x06\x13\x14\x16\x1d"  # six control characters whose byte the model's vocabulary lacks

texts = st.text(
    st.characters(exclude_categories=["Cs", "Cn"], exclude_characters=WITHOUT_TOKEN), max_size=60
) | st.text(" \n\tab'sz019.,é日٣½", max_size=60)


def test_its_vocabulary_is_the_ggufs(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 17]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "!"]
    assert len(set(tokenizer.convert_ids_to_tokens(list(range(49152))))) == 49152
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.encode("text") == tokenizer.encode("text", add_special_tokens=False)  # adds none by itself


def test_the_chat_template_opens_the_assistants_turn(smollm2: LoadedModel) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert smollm2.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_digits_are_split_one_by_one(smollm2: LoadedModel) -> None:
    assert smollm2.tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]


@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_decoding_gives_the_text_back(smollm2: LoadedModel, text: str) -> None:
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == text


def test_characters_without_a_token_are_left_out_and_nothing_else_is(smollm2: LoadedModel) -> None:
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(f"a{WITHOUT_TOKEN}b")) == "ab"


@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_no_token_holds_two_digits(smollm2: LoadedModel, text: str) -> None:
    for token in smollm2.tokenizer.encode(text):
        digits = [char for char in smollm2.tokenizer.decode([token]) if unicodedata.category(char).startswith("N")]
        assert len(digits) <= 1


@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_text_is_cut_where_the_ggufs_pre_tokenizer_cuts_it(smollm2: LoadedModel, text: str) -> None:
    cuts = [span for _, span in smollm2.tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[start:end] for start, end in cuts] == pieces(text)


def pieces(text: str) -> list[str]:
    parts, at = [], 0
    for digit in DIGIT.finditer(text):
        parts += [*PIECE.findall(text[at : digit.start()]), digit.group()]
        at = digit.end()
    return parts + PIECE.findall(text[at:])
