"""Puts a checkpoint's tensors into a backend's hands, merged and checked. Knows the backend's ops; knows no family.

A family's `build(builder)` runs twice: once against shapes alone, which finds every missing, misshapen and unused
tensor before anything is read, and once for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from offgen.backends.base import AttentionSpec, Backend, Linear
from offgen.models.config import HFConfig
from offgen.models.rope import RopeConfig, cos_sin_table, no_rotation, rope_limit
from offgen.models.weights import TensorSource


class NotNative(Exception):
    """A family's builder says why it does not serve this configuration."""


class Builder:
    """What a family builds from. Writes `weight_bytes`, `notes` and `context_limits`, read when all is built."""

    def __init__(
        self, config: HFConfig, tensors: TensorSource, backend: Backend, *, num_positions: int | None = None
    ) -> None:
        self.config = config
        self.tensors = tensors
        self.backend = backend
        self.weight_bytes = 0
        self.notes: list[str] = []
        self.context_limits: list[tuple[int, str | None]] = []
        self._num_positions = num_positions
        self._tables: dict[str, torch.Tensor] = {}
        self._embeddings: dict[str, torch.Tensor] = {}  # those on a card: a tied head is the same tensor

    def with_defaults(self, defaults: dict[str, Any]) -> HFConfig:
        """The family's defaults for keys that config.json leaves out, as in transformers' config class."""
        self.config = self.config.with_defaults(defaults)
        return self.config

    def linear(self, names: Sequence[str], rows: Sequence[int], columns: int, *, has_bias: bool = False) -> Linear:
        """One linear of several stored ones, stacked: names without `.weight`, and the rows of each."""
        weight = self._empty(sum(rows), columns)
        bias = self._empty(sum(rows)) if has_bias else None
        first = 0
        for name, count in zip(names, rows, strict=True):
            self.tensors.take_into(f"{name}.weight", weight[first : first + count])
            if bias is not None:
                self.tensors.take_into(f"{name}.bias", bias[first : first + count])
            first += count
        return self.pack(weight, bias)

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Hand a finished weight [out, in] to the backend."""
        self.weight_bytes += weight.numel() * weight.element_size()
        return self.backend.linear(self._place(weight), None if bias is None else self._place(bias))

    def vector(self, name: str, size: int, *, plus: float | None = None) -> torch.Tensor:
        """A norm's weight; `plus` is added in float32, which it then stays: bfloat16 has too few digits for 1 + w."""
        if plus is None:
            return self._keep(self.tensors.take(name, (size,), self.backend.dtype))
        return self._keep(self.tensors.take(name, (size,), torch.float32) + plus)

    def embedding(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """The table that token ids look up. On the host it stays in its file, as stored: only rows used are read."""
        if self.backend.device.type == "cuda":
            self._embeddings[name] = self._whole(name, rows, columns)
            return self._keep(self._embeddings[name])
        return self._keep(self.tensors.take_mapped(name, (rows, columns)))

    def head(self, embedding: str, rows: int, columns: int, *, name: str = "lm_head") -> Linear:
        """The linear that makes logits: the embedding again where config.json ties them, else `name`."""
        if not self.config.is_tied:
            return self.linear([name], [rows], columns)
        weight = self._embeddings[embedding] if embedding in self._embeddings else self._whole(embedding, rows, columns)
        if self.tensors.has(f"{name}.weight"):
            stored = self._whole(f"{name}.weight", rows, columns)
            if weight.device.type != "meta" and not torch.equal(weight, stored):
                self.notes.append(
                    f"`{name}.weight` differs from `{embedding}`, but config.json says tie_word_embeddings: "
                    "the embedding is used for both"
                )
        return self.pack(weight)

    def rope_table(self, rope: RopeConfig | None, key: str = "") -> torch.Tensor:
        """The cos/sin table of a rotation (None: of no rotation), made once per `key`."""
        if key not in self._tables:
            if rope is None:
                table = no_rotation(self._num_positions or int(self.config["max_position_embeddings"]))
            else:
                self.context_limits.append(rope_limit(rope))
                is_dry = self.backend.device.type == "meta"
                table = cos_sin_table(rope, 1 if is_dry else self._num_positions or self.context_limits[-1][0])
            self._tables[key] = table.to(self.backend.device)
        return self._tables[key]

    def spec(
        self, *, sliding_window: int | None = None, scale: float | None = None, logit_soft_cap: float | None = None
    ) -> AttentionSpec:
        """Attention of the configuration's heads; the usual scale if none is given."""
        config = self.config
        return AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5 if scale is None else scale,
            sliding_window=sliding_window,
            logit_soft_cap=logit_soft_cap,
        )

    def _empty(self, *shape: int) -> torch.Tensor:
        """Where the backend computes: what is put together is put together there, and crosses over once."""
        return torch.empty(shape, dtype=self.backend.dtype, device=self.backend.device)

    def _whole(self, name: str, rows: int, columns: int) -> torch.Tensor:
        out = self._empty(rows, columns)
        self.tensors.take_into(name, out)
        return out

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.weight_bytes += tensor.numel() * tensor.element_size()
        return self._place(tensor)

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.backend.device)


class ShapeBackend:
    """The backend of a dry run: takes weights, keeps nothing."""

    name = "shapes"

    def __init__(self, dtype: torch.dtype) -> None:
        self.device = torch.device("meta")
        self.dtype = dtype

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return _Shape(weight.shape[1], weight.shape[0])


class _Shape:
    def __init__(self, in_features: int, out_features: int) -> None:
        self.in_features = in_features
        self.out_features = out_features

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a dry run computes nothing")
