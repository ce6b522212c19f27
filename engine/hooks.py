"""The three places where the engine reaches into an unmodified mlx-lm model: rope, the per-layer cache, the head.

Everything here works on any model of mlx_lm.models that follows their conventions; strategies.py checks at load
whether this one does.
"""

from __future__ import annotations

from typing import Any, cast

from engine import device  # isort: skip  # noqa: F401  # first: it loads OpenBLAS, which must come before mlx
import mlx.core as mx
from mlx.nn.layers.base import Module


class PerTokenRope(Module):
    """Stands in for an attention's rope. With an offset per token (batch of one), the token axis takes the place of
    the batch axis, over which mx.fast.rope accepts an array of offsets. Any other call goes through unchanged."""

    def __init__(self, rope: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rope = rope

    def __call__(self, x: mx.array, offset: Any = 0, **kwargs: Any) -> mx.array:
        per_token = isinstance(offset, mx.array) and x.ndim == 4 and x.shape[0] == 1 and offset.size == x.shape[2]
        if not per_token:
            return cast(mx.array, self.rope(x, offset=offset, **kwargs))
        return cast(mx.array, self.rope(x.transpose(2, 1, 0, 3), offset=offset, **kwargs).transpose(2, 1, 0, 3))


class TreeCache:
    """One layer's KV cache during a tree pass: `ancestors` are keys and values (1, heads, T, dim) computed before,
    `offset` holds one position per row, and `make_mask` returns the tree mask (rows, T + rows). Sliding-window layers
    ask for a window: positions decide then who is near enough."""

    def __init__(
        self,
        ancestors: tuple[mx.array, mx.array] | None,
        positions: mx.array,
        key_positions: mx.array,
        mask: mx.array,
        blocks: Any = None,
    ) -> None:
        self.ancestors = ancestors
        self.offset = positions
        self.key_positions = key_positions
        self.mask = mask
        self.blocks = blocks  # the same mask for cpu_kernels.py
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.ancestors is not None:
            keys = mx.concatenate([self.ancestors[0], keys], axis=2)
            values = mx.concatenate([self.ancestors[1], values], axis=2)
        self.keys, self.values = keys, values
        return keys, values

    def make_mask(self, length: int, return_array: bool = False, window_size: int | None = None) -> Any:
        if window_size is None:
            return self.mask
        near = self.offset[:, None] < self.key_positions[None] + window_size
        return self.mask & near

    def __bool__(self) -> bool:  # mlx-lm asks `if cache`
        return True


class _GivenHidden:
    """A backbone that returns hidden states computed before, so that the model's own head can be applied to them.
    Anything else that the head asks of its backbone (tied embeddings) comes from the real one."""

    def __init__(self, backbone: Any, hidden: mx.array) -> None:
        self._backbone = backbone
        self._hidden = hidden

    def __call__(self, *_: Any, **__: Any) -> mx.array:
        return self._hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backbone, name)


class HookedModel:
    """An mlx-lm model split into backbone and head.

    Attributes: `model` (the mlx-lm model), `layers` (how many caches it wants).
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._owner = _owner_of_backbone(model)
        self.layers = len(model.layers)
        for layer in model.layers:
            for module in list(layer.modules()):
                rope = module.get("rope") if isinstance(module, Module) else None
                if (
                    isinstance(rope, Module)
                    and not isinstance(rope, PerTokenRope)
                    and not isinstance(module, PerTokenRope)
                ):
                    module.rope = PerTokenRope(rope)

    def hidden(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Hidden states (batch, length, dim) of tokens (batch, length); logits where the backbone is out of reach."""
        if self._owner is None:
            return cast(mx.array, self.model(tokens, cache=cache))
        return cast(mx.array, self._owner.model(tokens, cache=cache))

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits (rows, vocabulary) in float32 of hidden states (rows, dim), through the model's own head."""
        if self._owner is None:
            return hidden.astype(mx.float32)
        backbone = self._owner.model
        self._owner.model = _GivenHidden(backbone, hidden[None])
        try:
            logits = self.model(mx.zeros((1, hidden.shape[0]), mx.int32))[0]
        finally:
            self._owner.model = backbone
        return cast(mx.array, logits).astype(mx.float32)


def _owner_of_backbone(model: Any) -> Any | None:
    """The module whose `.model` is the stack of layers, or None when the model hides it."""
    owner = model
    while hasattr(owner, "language_model"):  # its wrapper may show the backbone as a property that cannot be set
        owner = owner.language_model
    return owner if hasattr(getattr(owner, "model", None), "layers") else None
