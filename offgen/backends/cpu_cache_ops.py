"""The ops that touch the KV cache, tensors in and tensors out. Knows what the kernels take."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from offgen.backends import cpu_kv
from offgen.backends.base import AttentionInputs, AttentionSpec
from offgen.backends.cpu_attention import NO_WINDOW, attention_kernel, scratch_bytes
from offgen.backends.cpu_attention_plan import ITEM_ROWS, plan_kernel
from offgen.backends.cpu_pool import Moving, Pool, float_bits

SMALL = 16384  # values of a row-wise op that one thread finishes before another would have woken up


def as_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Hundreds of calls a step ask for what a tensor already is: torch takes its time to find out."""
    return x if x.dtype is dtype else x.to(dtype)


def as_float32(x: torch.Tensor) -> torch.Tensor:
    return as_dtype(x, torch.float32).contiguous()


PLAN_PARTS = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """The work items of a step's attention, where the kernel reads them.

    addresses   of the items' number, order, (first, count, shared keys); of the queries' token, row, position
    """

    memory: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    addresses: tuple[int, ...]

    @classmethod
    def empty(cls, num_tokens: int) -> Plan:
        queries = np.empty((3, num_tokens), dtype=np.int32)
        items = np.empty(4 * num_tokens + 1, dtype=np.int64)
        item_at = [items.ctypes.data + 8 * i for i in (0, 1, 1 + num_tokens)]
        return cls((queries, items), (*item_at, *(queries.ctypes.data + 4 * num_tokens * i for i in range(3))))


@dataclass(frozen=True, slots=True)
class PlanPart:
    """One of the addresses of a plan: those of its items, then those of its queries."""

    per_group: int  # query heads of a KV head
    may_share: bool
    index: int


class CacheOps:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._inputs: AttentionInputs | None = None
        self._plans: dict[tuple[int, bool], Plan] = {}  # of self._inputs, by heads per KV head and may-share
        self._found: dict[Hashable, Moving] = {}  # of self._inputs

    def moving(self, inputs: AttentionInputs, what: Hashable) -> Moving:
        """What a kernel is told of a step: the address of a tensor of `inputs` or of a plan, or `table_stride`."""
        if self._inputs is not inputs:
            self._inputs = inputs
            self._plans.clear()
            self._found.clear()
        found = self._found.get(what)
        if found is None:
            if isinstance(what, PlanPart):
                value = self._plan_of(inputs, what.per_group, what.may_share).addresses[what.index]
            else:
                value = inputs.block_tables.stride(0) if what == "table_stride" else _ints(getattr(inputs, str(what)))
            found = self._found[what] = Moving.of(value, what)
        return found

    def rope_and_write_kv(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_cache: cpu_kv.CpuKVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        norm_eps: float,
    ) -> torch.Tensor:
        wide, cos_sin = as_float32(qkv), as_float32(cos_sin)
        q_norm, k_norm = (None if norm is None else as_float32(norm) for norm in (q_norm, k_norm))
        out = self._pool.empty(wide.shape[0], spec.num_heads, spec.head_dim)
        self._pool.run(
            cpu_kv.write_kernel(kv_cache.kind).address,
            self._pool.rows(wide.shape[0]),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            wide.data_ptr(),
            wide.shape[1] * 4,
            cos_sin.data_ptr(),
            cos_sin.shape[1],
            self.moving(inputs, "positions"),
            self.moving(inputs, "slots"),
            _address(q_norm),
            _address(k_norm),
            float_bits(norm_eps),
            out.data_ptr(),
            *kv_cache.addresses(),
            kv_cache.block_size,
            is_small=wide.numel() <= SMALL,
        )
        return as_dtype(out, qkv.dtype)

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, kv_cache: cpu_kv.CpuKVCache, inputs: AttentionInputs) -> None:
        rows = as_float32(torch.stack((k, v), dim=1))
        self._pool.run(
            cpu_kv.write_kernel(kv_cache.kind).address,
            self._pool.rows(rows.shape[0]),
            0,
            k.shape[1],
            k.shape[2],
            rows.data_ptr(),
            rows.stride(0) * 4,
            0,
            0,
            self.moving(inputs, "positions"),
            self.moving(inputs, "slots"),
            0,
            0,
            0,
            0,
            *kv_cache.addresses(),
            kv_cache.block_size,
            is_small=rows.numel() <= SMALL,
        )

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: cpu_kv.CpuKVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        wide, sinks = as_float32(q), None if sinks is None else as_float32(sinks)
        out = self._pool.empty(*wide.shape)
        num_queries = int(inputs.cu_seqlens_q.numpy()[-1])
        if num_queries < wide.shape[0]:
            out[num_queries:].zero_()  # padding tokens
        per_group, may_share = spec.num_heads // spec.num_kv_heads, spec.sliding_window is None
        most, width = max(ITEM_ROWS, per_group), cpu_kv.padded_dim(spec.head_dim)
        bytes_each = scratch_bytes(most, spec.head_dim, width)
        scratch = self._pool.empty(self._pool.threads, bytes_each, dtype=torch.uint8)
        self._pool.run(
            attention_kernel(kv_cache.kind).address,
            *(self.moving(inputs, PlanPart(per_group, may_share, i)) for i in range(PLAN_PARTS)),
            wide.data_ptr(),
            out.data_ptr(),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            float_bits(spec.scale),
            NO_WINDOW if spec.sliding_window is None else spec.sliding_window,
            float_bits(spec.logit_soft_cap or 0.0),
            _address(sinks),
            self.moving(inputs, "block_tables"),
            self.moving(inputs, "table_stride"),
            kv_cache.block_size,
            *kv_cache.addresses(),
            most,
            scratch.data_ptr(),
            scratch.stride(0),
        )
        return as_dtype(out, q.dtype)

    def _plan_of(self, inputs: AttentionInputs, per_group: int, may_share: bool) -> Plan:
        """Made when the first layer of a step asks for it, and kept for the others."""
        plan = self._plans.get((per_group, may_share))
        if plan is None:
            num_tokens = inputs.positions.shape[0]
            plan = self._plans[per_group, may_share] = Plan.empty(num_tokens)
            number, order, items, *queries = plan.addresses
            self._pool.run_alone(
                plan_kernel.address,
                inputs.seq_lens.shape[0],
                inputs.num_decodes,
                _ints(inputs.cu_seqlens_q),
                _ints(inputs.seq_lens),
                self.moving(inputs, "block_tables"),
                self.moving(inputs, "table_stride"),
                inputs.block_size,
                per_group,
                int(may_share),  # a window leaves little of a prefix to share
                num_tokens,
                *queries,
                items,
                order,
                number,
            )
        return plan


def _ints(tensor: torch.Tensor) -> int:
    """Address of an index tensor; a kernel would read another type as garbage."""
    assert tensor.dtype == torch.int32 and (tensor.dim() == 0 or tensor.stride(-1) == 1), "index tensors are int32"
    return tensor.data_ptr()


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
