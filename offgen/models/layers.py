"""What decoder families are built from: attention, gated MLP, layers, the stack. Knows ops; knows no checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from offgen.backends.base import AttentionInputs, AttentionSpec, Backend, KVCache, Linear
from offgen.models.config import ModelConfig

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm over the last dimension."""

    backend: Backend
    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.backend.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual)."""
        return self.backend.add_rms_norm(x, residual, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention over paged keys: one linear in, rotation and cache write in one op, one linear out.

    q_norm, k_norm          weights [head_dim]: each head is normed before it is rotated (Qwen3, Gemma3)
    q_row_norm, k_row_norm  the same over all heads of a token together (OLMo2)
    """

    backend: Backend
    qkv: Linear
    out: Linear
    spec: AttentionSpec
    cos_sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    norm_eps: float = 1e-6
    q_row_norm: Norm | None = None
    k_row_norm: Norm | None = None

    def __call__(self, x: torch.Tensor, kv_cache: KVCache, inputs: AttentionInputs) -> torch.Tensor:
        qkv = self.qkv(x)
        if self.q_row_norm is not None and self.k_row_norm is not None:
            qkv = self._norm_rows(qkv, self.q_row_norm, self.k_row_norm)
        q = self.backend.rope_and_write_kv(
            qkv, self.cos_sin, kv_cache, inputs, self.spec, self.q_norm, self.k_norm, self.norm_eps
        )
        attended = self.backend.paged_attention(q, kv_cache, inputs, self.spec)
        return self.out(attended.reshape(x.shape[0], -1))

    def _norm_rows(self, qkv: torch.Tensor, q_norm: Norm, k_norm: Norm) -> torch.Tensor:
        kv_width = self.spec.num_kv_heads * self.spec.head_dim
        q, k, v = torch.split(qkv, [self.spec.num_heads * self.spec.head_dim, kv_width, kv_width], dim=-1)
        return torch.cat((q_norm(q.contiguous()), k_norm(k.contiguous()), v), dim=-1)


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate) * up), gate and up in one linear."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.gate_up(x)))


class Layer(Protocol):
    """One decoder layer. `residual` is the running sum; None only before the first layer."""

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, kv_cache: KVCache, inputs: AttentionInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (what is still to be added, running sum)."""
        ...


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """Norm, attention, norm, MLP: Llama and its many children. `residual_scale` as in Granite."""

    input_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: GatedMLP
    residual_scale: float | None = None

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, kv_cache: KVCache, inputs: AttentionInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            normed, residual = self.input_norm(x), x
        else:
            normed, residual = self.input_norm.add(x, residual)
        x = self._scaled(self.attention(normed, kv_cache, inputs))
        normed, residual = self.mlp_norm.add(x, residual)
        return self._scaled(self.mlp(normed)), residual

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.residual_scale is None else x * self.residual_scale


@dataclass(frozen=True, slots=True)
class SandwichLayer:
    """Norms before and after attention and MLP: Gemma2, Gemma3."""

    input_norm: Norm
    attention: Attention
    attention_out_norm: Norm
    mlp_norm: Norm
    mlp: GatedMLP
    mlp_out_norm: Norm

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, kv_cache: KVCache, inputs: AttentionInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            normed, residual = self.input_norm(x), x
        else:
            normed, residual = self.input_norm.add(x, residual)
        x = self.attention_out_norm(self.attention(normed, kv_cache, inputs))
        normed, residual = self.mlp_norm.add(x, residual)
        return self.mlp_out_norm(self.mlp(normed)), residual


@dataclass(frozen=True, slots=True)
class PostNormLayer:
    """Norms after attention and MLP only: OLMo2."""

    attention: Attention
    attention_out_norm: Norm
    mlp: GatedMLP
    mlp_out_norm: Norm

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, kv_cache: KVCache, inputs: AttentionInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x if residual is None else x + residual
        total = total + self.attention_out_norm(self.attention(total, kv_cache, inputs))
        return self.mlp_out_norm(self.mlp(total)), total


@dataclass(slots=True)
class Decoder:
    """A whole native model: embedding, layers, norm, head.

    embed_scale   what embeddings are multiplied by      (Gemma, Granite)
    logit_divisor what logits are divided by             (Granite)
    logit_cap     logits become cap * tanh(logits / cap) (Gemma2)
    """

    config: ModelConfig
    backend: Backend
    embedding: torch.Tensor
    layers: Sequence[Layer]
    norm: Norm
    head: Linear
    weight_bytes: int = 0
    embed_scale: float | None = None
    logit_divisor: float | None = None
    logit_cap: float | None = None

    def forward(self, token_ids: torch.Tensor, kv_caches: list[KVCache], inputs: AttentionInputs) -> torch.Tensor:
        # the table may be stored in another dtype than the model runs in
        x = self.backend.embedding(token_ids, self.embedding).to(self.backend.dtype)
        if self.embed_scale is not None:
            x = x * self.embed_scale
        residual: torch.Tensor | None = None
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            x, residual = layer(x, residual, kv_cache, inputs)
        return self.norm(x) if residual is None else self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden).to(torch.float32)
        if self.logit_divisor is not None:
            logits = logits / self.logit_divisor
        if self.logit_cap is not None:
            logits = torch.tanh(logits / self.logit_cap) * self.logit_cap
        return logits
