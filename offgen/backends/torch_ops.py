"""The plain-torch backend: every op is its reference. Any device, no speed; what the fast ones are tested against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from offgen_kernels import reference

from offgen.backends.base import Arrived, AttentionInputs, AttentionSpec, Download, KVCache, Linear
from offgen.backends.host import available_memory_bytes, kv_budget_bytes
from offgen.errors import UsageError

KV_DTYPES = {"bf16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class TorchKVCache:
    """values [2, num_blocks, block_size, G, D]; scales [2, num_blocks, block_size, G] float32 when values are int8."""

    values: torch.Tensor
    scales: torch.Tensor | None


class TorchLinear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class TorchInt8Linear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._values, self._scales = reference.quantize_rows(weight)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return reference.int8_linear(x, self._values, self._scales, self._bias)


class TorchBackend:
    """The contract of base.Backend, op for op from offgen_kernels.reference."""

    name = "torch"
    steps_ahead = 0
    step_shape = "mixed"
    sample_op = None

    def __init__(self, device: torch.device, *, dtype: torch.dtype, quantization: str, kv_cache_dtype: str) -> None:
        if quantization not in ("none", "int8"):
            raise UsageError(f"quantization {quantization!r} is not available on {device.type}", hint="none or int8")
        if kv_cache_dtype != "auto" and kv_cache_dtype not in KV_DTYPES:
            raise UsageError(
                f"KV cache dtype {kv_cache_dtype!r} is not available on {device.type}", hint="bf16 or int8"
            )
        self.device, self.dtype = device, dtype
        self._is_quantized = quantization == "int8"
        self._kv_dtype = KV_DTYPES.get(kv_cache_dtype, dtype)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        kind = TorchInt8Linear if self._is_quantized else TorchLinear
        bias = None if bias is None else bias.to(self.device, self.dtype)
        return kind(weight.to(self.device, self.dtype), bias)

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, weight)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return reference.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.add_rms_norm(x, residual, weight, eps)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        return reference.silu_and_mul(x)

    def gelu_and_mul(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        return reference.gelu_and_mul(x, approximate)

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
        heads = qkv.view(qkv.shape[0], -1, spec.head_dim)
        q, k, v = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        q = q if q_norm is None else reference.rms_norm(q, q_norm, norm_eps)
        k = k if k_norm is None else reference.rms_norm(k, k_norm, norm_eps)
        self.write_kv(reference.rope(k, inputs.positions, cos_sin), v, kv_cache, inputs)
        return reference.rope(q, inputs.positions, cos_sin).contiguous()

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, kv_cache: KVCache, inputs: AttentionInputs) -> None:
        if kv_cache.scales is None:
            reference.write_kv(k, v, kv_cache.values, inputs.slots)
            return
        (k, k_scale), (v, v_scale) = reference.quantize_rows(k), reference.quantize_rows(v)
        reference.write_kv(k, v, kv_cache.values, inputs.slots)
        reference.write_kv(k_scale, v_scale, kv_cache.scales, inputs.slots)

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: KVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        values = kv_cache.values
        if kv_cache.scales is not None:
            values = values * kv_cache.scales.unsqueeze(-1)
        return reference.paged_attention(
            q,
            values,
            inputs.block_tables,
            inputs.seq_lens,
            inputs.cu_seqlens_q,
            scale=spec.scale,
            sliding_window=spec.sliding_window,
            logit_soft_cap=spec.logit_soft_cap,
            sinks=sinks,
        )

    def allocate_kv(
        self, num_layers: int, num_blocks: int, block_size: int, spec: list[AttentionSpec]
    ) -> list[KVCache]:
        return [self._allocate(num_blocks, block_size, layer) for layer in spec[:num_layers]]

    def kv_bytes_per_block(self, block_size: int, spec: list[AttentionSpec]) -> int:
        scale_bytes = 4 if self._kv_dtype == torch.int8 else 0
        per_head = [layer.head_dim * self._kv_dtype.itemsize + scale_bytes for layer in spec]
        return sum(2 * block_size * layer.num_kv_heads * size for layer, size in zip(spec, per_head, strict=True))

    def available_memory_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        return available_memory_bytes()

    def kv_budget_bytes(self, utilization: float, step_bytes: int | None = None) -> int:
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return max(0, int(free - (1.0 - utilization) * total) - (step_bytes or 0))
        return kv_budget_bytes()

    def peak_bytes(self, run: Callable[[], Any]) -> int | None:
        return None

    def graph_bytes(self, max_num_seqs: int) -> int:
        return 0

    def release_memory(self) -> None:
        """Nothing to do: what a process frees is the machine's again."""

    @property
    def default_max_num_seqs(self) -> int:
        return 128

    @property
    def default_max_num_batched_tokens(self) -> int:
        return 512

    def upload(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def download(self, tensor: torch.Tensor) -> Download:
        return Arrived(tensor)

    def capture(self, forward: Callable[..., Any], *, pads: Mapping[str, int] | None = None) -> Callable[..., Any]:
        return forward

    def _allocate(self, num_blocks: int, block_size: int, spec: AttentionSpec) -> TorchKVCache:
        shape = (2, num_blocks, block_size, spec.num_kv_heads)
        values = torch.empty(*shape, spec.head_dim, dtype=self._kv_dtype, device=self.device)
        scales = torch.empty(shape, device=self.device) if self._kv_dtype == torch.int8 else None
        return TorchKVCache(values, scales)
