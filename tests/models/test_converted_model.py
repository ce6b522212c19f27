"""The converted model is the real one: its weights, positions and precision are right, so it speaks sense."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.utils import load as mlx_lm_load

from engine.models import LoadedModel
from engine.models.loading import to_float32

ENGLISH = (
    "The Moon is Earth's only natural satellite. It orbits around the Earth at an average distance of about 384,400 "
    "kilometers. The Moon always presents the same side to Earth, because its rotation is locked to its orbit."
)


def loss(model: nn.Module, tokens: list[int]) -> float:
    """Mean negative log-likelihood of each token after the first, in nats."""
    logits = model(mx.array([tokens[:-1]]))
    return float(nn.losses.cross_entropy(logits, mx.array([tokens[1:]]), reduction="mean").item())


def answer(smollm2: LoadedModel, question: str) -> str:
    chat = [{"role": "user", "content": question}]
    prompt = smollm2.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    tokens: list[int] = []
    for token, _ in generate_step(mx.array(prompt), smollm2.model, max_tokens=24):
        if token == smollm2.tokenizer.eos_token_id:
            break
        tokens.append(int(token))
    return smollm2.tokenizer.decode(tokens)


def test_it_answers_a_chat_question(smollm2: LoadedModel) -> None:
    assert answer(smollm2, "What is the capital of France?") == "The capital of France is Paris."


def test_logits_are_finite_over_the_whole_vocabulary(smollm2: LoadedModel) -> None:
    logits = smollm2.model(mx.array([smollm2.tokenizer.encode(ENGLISH)]))
    assert logits.shape[-1] == len(smollm2.tokenizer) == 49152
    assert bool(mx.isfinite(logits).all())


def test_english_is_likely_and_only_with_ggufs_order_of_rotated_dimensions(smollm2: LoadedModel) -> None:
    tokens = smollm2.tokenizer.encode(ENGLISH)
    right = loss(smollm2.model, tokens)
    ropes = [layer.self_attn.rope for layer in smollm2.model.model.layers]
    for rope in ropes:
        rope.traditional = False
    try:
        wrong = loss(smollm2.model, tokens)
    finally:
        for rope in ropes:
            rope.traditional = True
    assert right < 2.5
    assert wrong > right + 1


def test_on_the_cpu_every_weight_is_float32(smollm2: LoadedModel) -> None:
    if mx.default_device().type != mx.DeviceType.cpu:
        pytest.skip("weights stay quantised where products of quantised weights are fast")
    parameters = tree_flatten(smollm2.model.parameters())
    assert {weight.dtype for _, weight in parameters} == {mx.float32}
    assert sum(weight.size for _, weight in parameters) == 134_515_008
    assert isinstance(smollm2.model.model.embed_tokens, nn.Embedding)
    assert not isinstance(smollm2.model.model.layers[0].mlp.up_proj, nn.QuantizedLinear)


def test_the_stored_four_bit_form_gives_the_same_logits(smollm2: LoadedModel) -> None:
    """Metal and CUDA run the folder as it is stored. Compared with float32 scales, so that only the form differs:

    in half precision MLX's CPU build gives logits up to 0.6 away, which says nothing about the conversion.
    """
    stored = mlx_lm_load(str(smollm2.path), lazy=True)[0]
    assert isinstance(stored.model.layers[0].mlp.up_proj, nn.QuantizedLinear)
    assert stored.model.embed_tokens.bits == 8
    assert stored.model.norm.weight.dtype == mx.float16  # float32 would make every product after it float32
    stored.set_dtype(mx.float32)
    tokens = mx.array([smollm2.tokenizer.encode("The capital of France is")])
    ours, theirs = smollm2.model(tokens)[0, -1], stored(tokens)[0, -1]
    assert float(mx.abs(ours - theirs).max().item()) < 1e-3
    assert smollm2.tokenizer.decode([int(theirs.argmax().item())]) == " Paris"


@pytest.mark.parametrize(("mode", "group_size", "bits"), [("affine", 64, 4), ("affine", 32, 8), ("mxfp4", 32, 4)])
def test_other_quantised_forms_become_float32_with_the_same_output(mode: str, group_size: int, bits: int) -> None:
    mx.random.seed(0)
    network = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 128, bias=True), nn.Linear(128, 64, bias=False))
    network.set_dtype(mx.float16)
    nn.quantize(network, group_size=group_size, bits=bits, mode=mode)
    tokens = mx.array([[1, 2, 3]])
    expected = network(tokens).astype(mx.float32)
    to_float32(network)
    assert {weight.dtype for _, weight in tree_flatten(network.parameters())} == {mx.float32}
    assert float(mx.abs(network(tokens) - expected).max().item()) < 5e-3
