"""Each family of decoders, built small with random weights: the strategy it gets, and answers that equal its own
sequential forward. The README's table of architectures is checked against this one."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from plain import distribution

from engine import Engine, Options, Request, StructuredSchema
from engine.models.locate import locate
from engine.settings import ModelSettings

COMMON = {
    "vocab_size": 49152,  # the built-in model's, whose tokenizer they borrow
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW = {"sliding_window": 8, "sliding_window_pattern": 2}  # shorter than any prompt here
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("packed", {}),
    "mistral": ("packed", {}),
    "qwen2": ("packed", {"tie_word_embeddings": False}),
    "qwen3": ("packed", {}),
    "qwen3_moe": (
        "packed",
        {**EXPERTS, "num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    ),
    "phi3": ("packed", {}),
    "gemma2": (
        "packed",
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 16},
    ),
    "gemma3_text": ("packed", {**WINDOW, "query_pre_attn_scalar": 16, "rope_local_base_freq": 10000.0}),
    "gpt_oss": (
        "packed",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "olmo2": ("packed", {}),
    "granite": (
        "packed",
        {
            "logits_scaling": 8.0,
            "attention_multiplier": 0.25,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
    "cohere2": (
        "packed",
        {**WINDOW, "layer_norm_eps": 1e-5, "logit_scale": 0.25, "attention_bias": False, "layer_norm_bias": False},
    ),
    "smollm3": ("packed", {"no_rope_layer_interval": 2}),
    "deepseek_v2": (
        "packed",
        {
            **EXPERTS,
            "num_key_value_heads": 4,
            "kv_lora_rank": 32,
            "q_lora_rank": None,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4,
                "original_max_position_embeddings": 512,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "beta_fast": 32,
                "beta_slow": 1,
            },
        },
    ),
    "falcon_h1": (
        "broadcast",
        {"mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_d_state": 16, "mamba_n_heads": 8, "mamba_expand": 2},
    ),
    "mamba2": (
        "broadcast",
        {
            "num_heads": 8,
            "state_size": 16,
            "conv_kernel": 4,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_limit": [0.0, 100.0],
            "time_step_rank": "auto",
            "layer_norm_epsilon": 1e-5,
        },
    ),
    "lfm2": (
        "broadcast",
        {
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "block_ff_dim": 128,
            "layer_types": ["conv", "full_attention"],
        },
    ),
    "qwen3_5": (
        "broadcast",
        {
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 2,
        },
    ),
}
# Initial weights are so small that a wrong position or mask would hardly show in the answers.
WEIGHT_SCALE = 5.0

SCHEMA = StructuredSchema(
    {
        "issue": {
            "type": "enum",
            "description": "What is the customer's problem?",
            "choices": ["double charge", "double", "late delivery", "P1", "P10"],
        },
        "angry": {"type": "boolean", "description": "Is the customer angry?"},
    }
)
CONTEXTS = (
    "The card was charged twice for one order.",
    "The card was charged twice for one order, and nobody has answered my two e-mails since Monday.",
    "Merci, tout va bien.",
)


def build(architecture: str, folder: Path) -> Path:
    """An mlx-lm folder: the architecture at toy size with seeded random weights, and the built-in model's tokenizer."""
    _, specific = ARCHITECTURES[architecture]
    config = {"model_type": architecture, **COMMON, **specific}
    module = importlib.import_module(f"mlx_lm.models.{'llama' if architecture == 'mistral' else architecture}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = {name: w * WEIGHT_SCALE if w.ndim > 1 else w for name, w in tree_flatten(model.parameters())}
    builtin = locate("smollm2-135m", ModelSettings().data_dir, print).path
    shutil.copytree(builtin, folder, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_equal_the_sequential_forward(architecture: str, tmp_path: Path) -> None:
    expected_strategy, _ = ARCHITECTURES[architecture]
    engine = Engine.load(str(build(architecture, tmp_path / architecture)))
    check = engine.info.strategy_check
    assert engine.info.strategy == expected_strategy
    assert (check.packed_error if expected_strategy == "packed" else check.broadcast_error) < 1e-4

    requests = [Request(context, SCHEMA, Options()) for context in CONTEXTS]
    for _ in range(2):  # the second time from the prefix cache, where the strategy has one
        for request, result in zip(requests, engine.run(requests), strict=True):
            for answer in result.answers:
                expected = distribution(engine, request, answer.name, prior=answer.prior_used)
                assert answer.probabilities == pytest.approx(expected, abs=1e-4)
                assert len(set(answer.probabilities)) > 1


def test_the_readme_lists_each_under_its_strategy() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for strategy in ("packed", "broadcast"):
        [row] = re.findall(rf"^\| `{strategy}` \| (.*) \|$", readme, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == [n for n, (expected, _) in ARCHITECTURES.items() if expected == strategy]
