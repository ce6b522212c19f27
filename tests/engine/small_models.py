"""Decoders of many families at toy size, with seeded random weights, and a schema to ask them."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_map

from engine import StructuredSchema

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


def small_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """The `config.json` of the toy, with changes."""
    _, specific = ARCHITECTURES[architecture]
    return {"model_type": architecture, **COMMON, **specific, **changes}


def small_model(config: dict[str, Any]) -> Module:
    """The mlx-lm module of `small_config`."""
    kind = config["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{'llama' if kind == 'mistral' else kind}")
    mx.random.seed(0)
    model: Module = module.Model(module.ModelArgs.from_dict(dict(config)))
    model.update(tree_map(lambda w: w * WEIGHT_SCALE if w.ndim > 1 else w, model.parameters()))
    return model
