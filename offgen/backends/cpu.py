"""The fast CPU backend: kernels compiled for this processor, on torch's own threads.

Activations are float32 whatever the dtype; `bfloat16` and `float16` are how weights (and by default the KV cache) are
stored. A row's bits never depend on its neighbours: every sum runs in an order that the row alone fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from offgen.backends import cpu_kv
from offgen.backends.base import Arrived, AttentionInputs, AttentionSpec, Download, KVCache, Linear
from offgen.backends.cpu_attention import attention_kernel
from offgen.backends.cpu_cache_ops import SMALL, CacheOps, as_dtype, as_float32
from offgen.backends.cpu_int8 import GROUP, Int8Linear, int8_kernel
from offgen.backends.cpu_linear import PackedLinear, linear_kernel
from offgen.backends.cpu_pool import Moving, Pool, float_bits
from offgen.backends.cpu_program import Replayed
from offgen.backends.cpu_rows import (
    GELU,
    GELU_TANH,
    SILU,
    add_rms_norm_kernel,
    embedding_kernel,
    gated_kernel,
    rms_norm_kernel,
)
from offgen.backends.cpu_simd import BFLOAT16, FLOAT16, FLOAT32, INT8
from offgen.backends.host import available_cpus, available_memory_bytes, kv_budget_bytes
from offgen.errors import UsageError

STORED = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
KV_KINDS = {"bf16": BFLOAT16, "int8": INT8}
SMALL_NORM = 4 * SMALL  # norms are quick


class CpuBackend:
    """The contract of base.Backend. One instance per job; its threads are torch's."""

    name = "cpu"
    steps_ahead = 0
    step_shape = "mixed"
    sample_op = None
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
        self._cache_ops = CacheOps(self._pool)
        self._is_quantized = quantization == "int8"
        self._kv_kind = KV_KINDS.get(kv_cache_dtype, INT8 if self._is_quantized else STORED[dtype])

    def compile_kernels(self, part: int) -> None:
        """Compile, into the cache, what most models need: attention (part 0), or all the rest (part 1)."""
        if part == 0:
            attention_kernel(self._kv_kind)
            return
        cpu_kv.write_kernel(self._kv_kind)
        gated_kernel(SILU)
        for stored_as in {STORED[self.dtype], BFLOAT16}:
            embedding_kernel(stored_as)
        if self._is_quantized:
            int8_kernel(GROUP)
        else:
            linear_kernel(STORED[self.dtype])

    # weights

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        if self._is_quantized:
            return Int8Linear(self._pool, weight, bias)
        return PackedLinear(self._pool, weight.to(self.dtype), bias)

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.dtype not in STORED or not weight.is_contiguous():
            return F.embedding(token_ids, weight).to(torch.float32)
        out = self._pool.empty(token_ids.shape[0], weight.shape[1])
        self._pool.run(
            embedding_kernel(STORED[weight.dtype]).address,
            self._pool.rows(out.shape[0]),
            out.shape[1],
            Moving.of(token_ids.data_ptr(), "token_ids"),
            weight.data_ptr(),
            out.data_ptr(),
            is_small=out.numel() <= SMALL,
        )
        return out

    # small ops

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide, weight = as_float32(x), as_float32(weight)
        out = self._pool.empty(*wide.shape)
        count = wide.shape[-1]
        self._pool.run(
            rms_norm_kernel.address,
            self._pool.rows(wide.numel() // count),
            count,
            wide.data_ptr(),
            weight.data_ptr(),
            float_bits(eps),
            out.data_ptr(),
            is_small=wide.numel() <= SMALL_NORM,
        )
        return as_dtype(out, x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide, total, weight = as_float32(x), as_float32(residual), as_float32(weight)
        out = self._pool.empty(*wide.shape)
        count = wide.shape[-1]
        self._pool.run(
            add_rms_norm_kernel.address,
            self._pool.rows(wide.numel() // count),
            count,
            wide.data_ptr(),
            total.data_ptr(),
            weight.data_ptr(),
            float_bits(eps),
            out.data_ptr(),
            is_small=wide.numel() <= SMALL_NORM,
        )
        return as_dtype(out, x.dtype), as_dtype(total, residual.dtype)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gated(x, SILU)

    def gelu_and_mul(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        return self._gated(x, GELU_TANH if approximate == "tanh" else GELU)

    def _gated(self, x: torch.Tensor, activation: int) -> torch.Tensor:
        wide = as_float32(x)
        count = wide.shape[-1] // 2
        out = self._pool.empty(*wide.shape[:-1], count)
        self._pool.run(
            gated_kernel(activation).address,
            self._pool.rows(out.numel() // max(1, count)),
            count,
            wide.data_ptr(),
            out.data_ptr(),
            is_small=wide.numel() <= SMALL,
        )
        return as_dtype(out, x.dtype)

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
        return self._cache_ops.rope_and_write_kv(qkv, cos_sin, kv_cache, inputs, spec, q_norm, k_norm, norm_eps)

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, kv_cache: KVCache, inputs: AttentionInputs) -> None:
        self._cache_ops.write_kv(k, v, kv_cache, inputs)

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: KVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._cache_ops.paged_attention(q, kv_cache, inputs, spec, sinks)

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

    def kv_budget_bytes(self, utilization: float, step_bytes: int | None = None) -> int:
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

    # execution

    def upload(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array)

    def download(self, tensor: torch.Tensor) -> Download:
        return Arrived(tensor)

    def capture(self, forward: Callable[..., Any], *, pads: Mapping[str, int] | None = None) -> Callable[..., Any]:
        return Replayed(self._pool, self._cache_ops.moving, forward) if self._pool.can_record else forward
