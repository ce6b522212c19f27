"""Converts a Llama GGUF with a byte-level BPE tokenizer to an mlx-lm folder. Imports mlx.

The quantised weights are kept as they are: MLX reads Q4_1 and Q8_0 as its own affine quantisation, groups of 32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx

from engine.errors import ModelUnsupported

GROUP_SIZE = 32  # of GGUF's Q4_1 and Q8_0 blocks
BITS = 4  # of Q4_1; mlx-lm finds other widths (the Q8_0 embedding) from each weight's own shape

# GGUF's name -> mlx-lm's; the parts before and after (`blk.7`, `.weight`) map by themselves.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

CONTROL_TOKEN = 3  # GGUF's token type of special tokens


def convert(gguf: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into `folder`, which exists.

    Raises ModelUnsupported when the GGUF is of another kind than this conversion knows.
    """
    loaded: Any = mx.load(str(gguf), return_metadata=True)
    weights: dict[str, mx.array] = loaded[0]
    metadata: dict[str, Any] = loaded[1]
    _check_kind(metadata)
    renamed = {mlx_name(name): _half(weight) for name, weight in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), renamed, metadata={"format": "mlx"})
    _write_json(folder / "config.json", config(metadata, tied="lm_head.weight" not in renamed))
    _write_json(folder / "tokenizer.json", tokenizer(metadata))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))


def mlx_name(name: str) -> str:
    """`blk.7.attn_q.scales` -> `model.layers.7.self_attn.q_proj.scales`."""
    head, kind = name.rsplit(".", 1)
    if head in TOP_NAMES:
        return f"{TOP_NAMES[head]}.{kind}"
    block, layer, part = head.split(".")
    if block != "blk" or part not in LAYER_NAMES:
        raise ModelUnsupported(f"the GGUF has a weight {name}, which a Llama model does not have")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """mlx-lm's config.json. `rope_traditional`: GGUF permutes q's and k's rows to pair neighbouring dimensions."""

    def number(key: str) -> Any:
        return metadata[f"llama.{key}"].item()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("rope.dimension_count"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "vocab_size": number("vocab_size"),
        "max_position_embeddings": number("context_length"),
        "rope_theta": number("rope.freq_base"),
        "rope_traditional": True,
        "tie_word_embeddings": tied,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"].item(),
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"].item(),
        "quantization": {"group_size": GROUP_SIZE, "bits": BITS},
    }


def tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE that first splits off each digit (GGUF's pre-tokenizer `smollm`)."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"].tolist()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [pair.split(" ") for pair in metadata["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """The class is the plain fast tokenizer: a model-specific one may rebuild the pre-tokenizer in its own way."""

    def token(key: str) -> str:
        text: str = metadata["tokenizer.ggml.tokens"][metadata[f"tokenizer.ggml.{key}_token_id"].item()]
        return text

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "model_max_length": metadata["llama.context_length"].item(),
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _check_kind(metadata: dict[str, Any]) -> None:
    for key, expected in {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }.items():
        if metadata.get(key) != expected:
            raise ModelUnsupported(f"the GGUF's {key} is {metadata.get(key)!r}; only {expected!r} is converted")


def _half(weight: mx.array) -> mx.array:
    """The norms' weights in the scales' precision where that loses nothing.

    A float32 norm would make every product after it float32 on Metal too.
    """
    if weight.dtype != mx.float32:
        return weight
    half = weight.astype(mx.float16)
    return half if bool(mx.array_equal(half.astype(mx.float32), weight)) else weight


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
