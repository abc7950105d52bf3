"""The contract between models and devices. Everything that depends on the device stands behind it.

Shapes: T query tokens in the step, R rows, H query heads, G KV heads, D head_dim, E hidden size, V vocabulary.
A backend is built once with its device, dtype and threads, and holds no state of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Where each query token's keys are. All int32 on the device; the same for every layer of a step.

    slots         [T]      block_ids[position // block_size] * block_size + position % block_size; -1: not written
    positions     [T]      position of each query token in its row
    block_tables  [R, max_blocks]   -1 past the end
    seq_lens      [R]      tokens in the cache once this step's are written
    cu_seqlens_q  [R + 1]  row r's query tokens are [cu_seqlens_q[r], cu_seqlens_q[r + 1])
    num_decodes   rows at the END of the batch that have exactly one query token each (chunks come first)
    """

    slots: torch.Tensor
    positions: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    num_decodes: int
    max_seq_len: int
    block_size: int
    total_seq_len: int | None = None  # sum of seq_lens, where the host knows it: a GPU launches no more than that needs


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer's attention is, fixed when the model is built."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None = None  # a query sees itself and the window - 1 tokens before it
    logit_soft_cap: float | None = None


class Linear(Protocol):
    """A weight as the backend packed it."""

    in_features: int
    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in_features] -> [T, out_features]."""
        ...


class Download(Protocol):
    """A tensor on its way to the host."""

    def read(self) -> torch.Tensor:
        """Wait for it."""
        ...


class SampleOp(Protocol):
    """A device's own sampling in one launch, as offgen_kernels.sample.sample."""

    def __call__(
        self,
        logits: torch.Tensor,
        *,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        keys: torch.Tensor,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(token ids [S] int64, non-finite [S] bool). Temperature 0 is greedy; top_k 0, top_p 1, min_p 0 are off."""
        ...


@dataclass(frozen=True, slots=True)
class Arrived:
    """A tensor that is on the host already."""

    tensor: torch.Tensor

    def read(self) -> torch.Tensor:
        return self.tensor


KVCache = Any  # one layer's storage, made by Backend.allocate_kv; models pass it on unread


class Backend(Protocol):
    """Ops, memory figures, capture. Every op equals its namesake in offgen_kernels.reference within rounding."""

    name: str  # as `--attention-backend` and the report say it
    device: torch.device
    dtype: torch.dtype

    # weights
    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Pack weight [out, in] (and quantize it, if the backend was told to). The caller drops the original."""
        ...

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """token_ids [T] -> [T, E]."""
        ...

    # small ops
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., E] -> same shape; statistics in float32."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(x + residual), x + residual). May write into its inputs."""
        ...

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2 * F] as (gate, up) -> silu(gate) * up [T, F]."""
        ...

    def gelu_and_mul(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        """The same with GELU; approximate is `none` or `tanh`."""
        ...

    def rope_and_write_kv(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_cache: KVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        norm_eps: float = 1e-6,
    ) -> torch.Tensor:
        """Split qkv [T, (H + 2G) * D], norm heads if asked, rotate (half-split), store k and v at their slots.

        cos_sin [max_positions, rotary_dim] float32: cosines of the rotary_dim/2 frequencies, then sines; indexed by
        position. rotary_dim < D rotates the first rotary_dim values only; a zero-width table rotates nothing.
        Returns q [T, H, D].
        """
        ...

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, kv_cache: KVCache, inputs: AttentionInputs) -> None:
        """Store k, v [T, G, D] at inputs.slots (for models that rotate by themselves)."""
        ...

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: KVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q [T, H, D] -> [T, H, D]: causal over each row's own keys, this step's included. sinks [H] logits or None."""
        ...

    # memory
    def allocate_kv(
        self, num_layers: int, num_blocks: int, block_size: int, spec: list[AttentionSpec]
    ) -> list[KVCache]:
        """One cache per layer. Lazily committed where the device allows it.

        Raises torch.OutOfMemoryError where the device has no room, and keeps nothing then.
        """
        ...

    def kv_bytes_per_block(self, block_size: int, spec: list[AttentionSpec]) -> int:
        """Bytes one block takes in all layers together."""
        ...

    def available_memory_bytes(self) -> int:
        """What may still be allocated on the device (on CPU: of the machine or its cgroup)."""
        ...

    def kv_budget_bytes(self, utilization: float, step_bytes: int | None = None) -> int:
        """What the KV pool may take by default, the model being loaded (`utilization`: --gpu-memory-utilization).

        step_bytes   what steps need beside it, graphs included; None: not measured
        """
        ...

    def peak_bytes(self, run: Callable[[], Any]) -> int | None:
        """What `run` takes at its worst moment beyond what is allocated now; None, without running it, if not known.

        Raises what `run` raises.
        """
        ...

    def graph_bytes(self, max_num_seqs: int) -> int:
        """What captured steps of up to so many rows are expected to take; 0 where nothing is captured."""
        ...

    def release_memory(self) -> None:
        """Give the device what this process has allocated and uses no more."""
        ...

    @property
    def default_max_num_seqs(self) -> int:
        """How many rows at once fill the device."""
        ...

    @property
    def default_max_num_batched_tokens(self) -> int:
        """How many tokens in a step reach the device's full rate."""
        ...

    # execution
    def upload(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """A host array as a tensor on the device, without waiting for the copy; on CPU the two may share memory."""
        ...

    def download(self, tensor: torch.Tensor) -> Download:
        """Start a copy to the host, to be read later; reading waits for nothing that was launched after."""
        ...

    def capture(self, forward: Callable[..., Any], *, pads: Mapping[str, int] | None = None) -> Callable[..., Any]:
        """A faster form of `forward` (a CUDA graph); on CPU, `forward` itself.

        forward  (token_ids [T], kv_caches, inputs, **per_row) -> tensors of T rows
        pads     per_row tensors [T, …] by name, and the value that makes a row of padding harmless
        """
        ...

    @property
    def sample_op(self) -> SampleOp | None:
        """The device's own sampling; None: torch's operations do it."""
        ...

    @property
    def steps_ahead(self) -> int:
        """How many steps may be launched before the last one's ids are read: 1 on a GPU, 0 on a CPU."""
        ...

    @property
    def step_shape(self) -> str:
        """`mixed`: prompts are computed in the steps of decode rows; `measured`: or in their own, if that is faster."""
        ...
