"""The language models: the built-in one, local mlx-lm folders, hub ids. Importing this package imports no mlx."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.models.builtin import BUILTIN, BuiltinModel, available

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module
    from transformers import PreTrainedTokenizerFast

__all__ = ["BUILTIN", "BuiltinModel", "LoadedModel", "available", "load"]


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. `model` is mlx-lm's module, `tokenizer` the plain fast tokenizer, `path` its folder."""

    model: Module
    tokenizer: PreTrainedTokenizerFast
    name: str
    path: Path


def load(model: str, data_dir: Path, progress: Callable[[str], None] | None = None) -> LoadedModel:
    """Load a built-in name, a local mlx-lm folder or a hub id; what is missing is downloaded first.

    On MLX's CPU backend every weight is made float32 (its quantised and half-precision products are slow there);
    on Metal and CUDA the weights stay as they are stored. `progress` is told, in words, what takes long.
    Raises ModelUnavailable when the files cannot be had, ModelUnsupported when mlx-lm cannot run them.
    """
    from engine.models.loading import load_folder
    from engine.models.locate import locate

    say = progress or (lambda _: None)
    found = locate(model, data_dir, say)
    say(f"loading {found.name}")
    module, tokenizer = load_folder(found.path)
    return LoadedModel(model=module, tokenizer=tokenizer, name=found.name, path=found.path)
