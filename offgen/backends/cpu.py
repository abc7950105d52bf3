"""The fast CPU backend: kernels compiled for this processor, on torch's own threads.

Activations are float32 whatever the dtype; `bfloat16` and `float16` are how weights (and by default the KV cache) are
stored. A row's bits never depend on its neighbours: every sum runs in an order that the row alone fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from offgen.backends import cpu_kv
from offgen.backends.base import AttentionInputs, AttentionSpec, KVCache, Linear
from offgen.backends.cpu_attention import NO_WINDOW, attention_kernel, scratch_bytes
from offgen.backends.cpu_attention_plan import ITEM_ROWS, plan_kernel
from offgen.backends.cpu_int8 import int8_linear
from offgen.backends.cpu_linear import PackedLinear
from offgen.backends.cpu_pool import Pool, float_bits
from offgen.backends.cpu_rows import GELU, GELU_TANH, SILU, add_rms_norm_kernel, gated_kernel, rms_norm_kernel
from offgen.backends.cpu_simd import BFLOAT16, FLOAT16, FLOAT32, INT8, LANES
from offgen.backends.host import available_cpus, available_memory_bytes
from offgen.errors import UsageError

STORED = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
KV_KINDS = {"bf16": BFLOAT16, "int8": INT8}
SMALL = 16384  # values of a row-wise op that one thread finishes before another would have woken up


def as_float32(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32).contiguous()


class CpuBackend:
    """The contract of base.Backend. One instance per job; its threads are torch's."""

    name = "cpu"
    steps_ahead = 0
    device = torch.device("cpu")

    def __init__(self, *, dtype: torch.dtype, threads: int | None, quantization: str, kv_cache_dtype: str) -> None:
        if quantization not in ("none", "int8"):
            raise UsageError(f"quantization {quantization!r} is not available on the CPU", hint="none or int8")
        if kv_cache_dtype != "auto" and kv_cache_dtype not in KV_KINDS:
            raise UsageError(
                f"KV cache dtype {kv_cache_dtype!r} is not available on the CPU", hint="auto, bf16 or int8"
            )
        self.dtype = dtype
        self.threads = threads or available_cpus()
        torch.set_num_threads(self.threads)
        self._pool = Pool(self.threads)
        self._is_quantized = quantization == "int8"
        self._kv_kind = KV_KINDS.get(kv_cache_dtype, STORED[dtype])

    # weights

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        if self._is_quantized:
            return int8_linear(self._pool, weight, bias)  # type: ignore[no-any-return]
        return PackedLinear(self._pool, weight.to(self.dtype), bias)

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, weight).to(torch.float32)

    # small ops

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide, weight = as_float32(x), as_float32(weight)
        out = torch.empty_like(wide)
        count = wide.shape[-1]
        self._pool.run(
            rms_norm_kernel.address,
            wide.numel() // count,
            count,
            wide.data_ptr(),
            weight.data_ptr(),
            float_bits(eps),
            out.data_ptr(),
            is_small=wide.numel() <= SMALL,
        )
        return out.to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide, total, weight = as_float32(x), as_float32(residual), as_float32(weight)
        out = torch.empty_like(wide)
        count = wide.shape[-1]
        self._pool.run(
            add_rms_norm_kernel.address,
            wide.numel() // count,
            count,
            wide.data_ptr(),
            total.data_ptr(),
            weight.data_ptr(),
            float_bits(eps),
            out.data_ptr(),
            is_small=wide.numel() <= SMALL,
        )
        return out.to(x.dtype), total.to(residual.dtype)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gated(x, SILU)

    def gelu_and_mul(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        return self._gated(x, GELU_TANH if approximate == "tanh" else GELU)

    def _gated(self, x: torch.Tensor, activation: int) -> torch.Tensor:
        wide = as_float32(x)
        count = wide.shape[-1] // 2
        out = torch.empty(*wide.shape[:-1], count)
        self._pool.run(
            gated_kernel(activation).address,
            out.numel() // max(1, count),
            count,
            wide.data_ptr(),
            out.data_ptr(),
            is_small=wide.numel() <= SMALL,
        )
        return out.to(x.dtype)

    # attention

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
        wide, cos_sin = as_float32(qkv), as_float32(cos_sin)
        q_norm, k_norm = (None if norm is None else as_float32(norm) for norm in (q_norm, k_norm))
        out = torch.empty(wide.shape[0], spec.num_heads, spec.head_dim)
        self._write(wide, cos_sin, kv_cache, inputs, spec.num_heads, spec.num_kv_heads, q_norm, k_norm, norm_eps, out)
        return out.to(qkv.dtype)

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, kv_cache: KVCache, inputs: AttentionInputs) -> None:
        wide = as_float32(torch.stack((k, v), dim=1))
        self._write(wide, torch.empty(0, 0), kv_cache, inputs, 0, k.shape[1], None, None, 0.0, None)

    def _write(
        self,
        rows: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_cache: cpu_kv.CpuKVCache,
        inputs: AttentionInputs,
        num_heads: int,
        num_kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        norm_eps: float,
        out: torch.Tensor | None,
    ) -> None:
        num_tokens = rows.shape[0]
        if num_tokens == 0:
            return
        row_size = rows.numel() // num_tokens
        self._pool.run(
            cpu_kv.write_kernel(kv_cache.kind).address,
            num_tokens,
            num_heads,
            num_kv_heads,
            row_size // (num_heads + 2 * num_kv_heads),
            rows.data_ptr(),
            row_size * 4,
            cos_sin.data_ptr(),
            cos_sin.shape[1],
            inputs.positions.data_ptr(),
            inputs.slots.data_ptr(),
            _address(q_norm),
            _address(k_norm),
            float_bits(norm_eps),
            _address(out),
            *kv_cache.addresses(),
            kv_cache.block_size,
            is_small=rows.numel() <= SMALL,
        )

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: KVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        wide, sinks = as_float32(q), None if sinks is None else as_float32(sinks)
        out = torch.empty_like(wide)
        num_tokens, num_rows = wide.shape[0], inputs.seq_lens.shape[0]
        per_group = spec.num_heads // spec.num_kv_heads
        queries = torch.empty(3, num_tokens, dtype=torch.int32)  # token, row, position
        items = torch.empty(4 * num_tokens + 1, dtype=torch.int64)  # number, order, (first, count, shared keys)
        query_at = [queries.data_ptr() + 4 * num_tokens * i for i in range(3)]
        item_at = [items.data_ptr() + 8 * i for i in (0, 1, 1 + num_tokens)]
        stride = inputs.block_tables.stride(0)
        most, width = max(ITEM_ROWS, per_group), cpu_kv.padded_dim(spec.head_dim)
        scratch = torch.empty(self.threads, scratch_bytes(most, spec.head_dim, width), dtype=torch.uint8)
        self._pool.run(
            plan_kernel.address,
            num_rows,
            inputs.num_decodes,
            inputs.cu_seqlens_q.data_ptr(),
            inputs.seq_lens.data_ptr(),
            inputs.block_tables.data_ptr(),
            stride,
            kv_cache.block_size,
            per_group,
            int(spec.sliding_window is None),
            num_tokens,
            *query_at,
            item_at[2],
            item_at[1],
            item_at[0],
            out.data_ptr(),
            spec.num_heads * spec.head_dim,
            is_small=True,
        )
        self._pool.run(
            attention_kernel(kv_cache.kind, width // LANES).address,
            *item_at,
            *query_at,
            wide.data_ptr(),
            out.data_ptr(),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            float_bits(spec.scale),
            NO_WINDOW if spec.sliding_window is None else spec.sliding_window,
            float_bits(spec.logit_soft_cap or 0.0),
            _address(sinks),
            inputs.block_tables.data_ptr(),
            stride,
            kv_cache.block_size,
            *kv_cache.addresses(),
            most,
            scratch.data_ptr(),
            scratch.stride(0),
        )
        return out.to(q.dtype)

    # memory

    def allocate_kv(
        self, num_layers: int, num_blocks: int, block_size: int, spec: list[AttentionSpec]
    ) -> list[KVCache]:
        return [
            cpu_kv.allocate(self._kv_kind, num_blocks, block_size, layer.num_kv_heads, layer.head_dim)
            for layer in spec[:num_layers]
        ]

    def kv_bytes_per_block(self, block_size: int, spec: list[AttentionSpec]) -> int:
        return sum(
            cpu_kv.bytes_per_block(self._kv_kind, block_size, layer.num_kv_heads, layer.head_dim) for layer in spec
        )

    def available_memory_bytes(self) -> int:
        return available_memory_bytes()

    # execution

    def capture(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        return forward


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
