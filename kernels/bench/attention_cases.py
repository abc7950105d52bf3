"""Attention at the shapes of real models: random keys in shuffled blocks, and torch's kernel on the same keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from case import Case, Scale, relative_error
from offgen_kernels import reference
from offgen_kernels.decode_attention import decode_attention, num_splits
from offgen_kernels.prefill_attention import prefill_attention
from offgen_kernels.reference_fp8 import quantize_rows_fp8
from offgen_kernels.work_plan import num_work_items, plan_work

BLOCK_SIZE = 16


@dataclass(slots=True)
class Rows:
    """Rows of a paged cache, heads first, blocks shuffled."""

    k: torch.Tensor
    v: torch.Tensor
    tables: torch.Tensor
    seq_lens: torch.Tensor

    @classmethod
    def make(cls, scale: Scale, lengths: list[int], num_kv_heads: int, head_dim: int) -> Rows:
        counts = [-(-n // BLOCK_SIZE) for n in lengths]
        shape = (sum(counts) + 1, num_kv_heads, BLOCK_SIZE, head_dim)
        k, v = (torch.randn(shape, device=scale.device, dtype=scale.dtype).transpose(1, 2) for _ in range(2))
        ids = torch.randperm(sum(counts), device=scale.device).to(torch.int32)
        tables = torch.full((len(lengths), max(counts)), -1, dtype=torch.int32, device=scale.device)
        used = 0
        for row, count in enumerate(counts):
            tables[row, :count] = ids[used : used + count]
            used += count
        return cls(k, v, tables, torch.tensor(lengths, dtype=torch.int32, device=scale.device))

    def part(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The first rows, as reference.py takes them: cache, tables, lengths."""
        used = self.tables[:rows].clamp(min=0).unique()
        places = torch.zeros(self.k.shape[0], dtype=torch.int32, device=self.k.device)
        places[used] = torch.arange(len(used), dtype=torch.int32, device=self.k.device)
        kv = torch.stack((self.k[used], self.v[used]))
        return kv, places[self.tables[:rows].clamp(min=0)], self.seq_lens[:rows]


# model, query heads, KV heads, head_dim, window, rows, tokens a row (0: a log-normal mix)
DECODE = [
    ("llama-3.1-8b", 32, 8, 128, None, 256, 1024),
    ("llama-3.1-8b", 32, 8, 128, None, 512, 1024),
    ("llama-3.1-8b", 32, 8, 128, None, 32, 8192),
    ("llama-3.1-8b", 32, 8, 128, None, 8, 8192),
    ("llama-3.1-8b", 32, 8, 128, None, 1, 32768),
    ("llama-3.1-8b", 32, 8, 128, None, 256, 0),
    ("qwen3-0.6b", 16, 8, 128, None, 256, 1024),
    ("smollm2-135m", 9, 3, 64, None, 256, 1024),
    ("gemma3-1b", 4, 1, 256, 512, 256, 1024),
    ("phi-96", 32, 32, 96, None, 64, 1024),
]


def decode_cases(scale: Scale) -> Iterator[Case]:
    for model, num_heads, num_kv_heads, head_dim, window, num_rows, length in DECODE:
        num_rows, longest = scale.of(num_rows, 2), scale.of(length, min(length, 40))
        lengths = [longest] * num_rows if length else _mix(num_rows, scale.of(1024, 20), scale.of(16384, 60))
        rows = Rows.make(scale, lengths, num_kv_heads, head_dim)
        q = torch.randn(num_rows, num_heads, head_dim, device=scale.device, dtype=scale.dtype)
        options: dict[str, Any] = {"scale": head_dim**-0.5, "window": window, "max_seq_len": max(lengths)}
        if window is None and num_splits(max(lengths)) > 1:  # as the engine does, once for all layers of a step
            options["plan"] = plan_work(rows.seq_lens, num_work_items(num_rows, sum(lengths)))
        seen = [min(n, window or n) for n in lengths]
        num_bytes = 2 * sum(seen) * num_kv_heads * head_dim * scale.dtype.itemsize
        name = f"{model} {num_rows} x {length or 'mix'}"

        def run(rows: Rows = rows, q: torch.Tensor = q, options: dict[str, Any] = options) -> Any:
            return decode_attention(q, rows.k, rows.v, rows.tables, rows.seq_lens, **options)

        def error(rows: Rows = rows, q: torch.Tensor = q, options: dict[str, Any] = options) -> float:
            few = min(4, q.shape[0])
            kv, tables, seq_lens = rows.part(few)
            out = torch.full_like(q, float("nan"))
            decode_attention(q, rows.k, rows.v, rows.tables, rows.seq_lens, out=out, **options)
            cu_seqlens = torch.arange(few + 1, device=q.device)
            expected = reference.paged_attention(
                q[:few].float(), kv, tables, seq_lens, cu_seqlens, scale=options["scale"],
                sliding_window=options["window"],
            )  # fmt: skip
            return relative_error(out[:few], expected) if bool(out.isfinite().all()) else float("inf")

        peers = {} if window else _varlen(rows, q, 1)
        yield Case("decode attention", name, run, error, "read", num_bytes=num_bytes, peers=peers)
        if not scale.is_small and model == "llama-3.1-8b":
            yield _fp8_decode(rows, q, options, num_bytes, name)


def _fp8_decode(rows: Rows, q: torch.Tensor, options: dict[str, Any], num_bytes: int, name: str) -> Case:
    (k, k_scales), (v, v_scales) = quantize_rows_fp8(rows.k), quantize_rows_fp8(rows.v)
    scales = {"k_scales": k_scales, "v_scales": v_scales}

    def run() -> Any:
        return decode_attention(q, k, v, rows.tables, rows.seq_lens, **options, **scales)

    def error() -> float:
        exact = decode_attention(q, rows.k, rows.v, rows.tables, rows.seq_lens, **options)
        return relative_error(run(), exact)

    return Case("decode attention fp8", name, run, error, "read", num_bytes=num_bytes // 2 * 33 // 32, tolerance=0.06)


def prefill_cases(scale: Scale) -> Iterator[Case]:
    for num_rows, context, chunk in ((8, 0, 1024), (1, 0, 8192), (2, 4096, 4096), (64, 1000, 100)):
        num_rows, context, chunk = scale.of(num_rows, 2), scale.of(context, context // 100), scale.of(chunk, 17)
        rows = Rows.make(scale, [context + chunk] * num_rows, 8, 128)
        q = torch.randn(num_rows * chunk, 32, 128, device=scale.device, dtype=scale.dtype)
        cu_seqlens = torch.arange(0, num_rows * chunk + 1, chunk, dtype=torch.int32, device=scale.device)
        flops = 4 * 32 * 128 * num_rows * (chunk * context + chunk * (chunk + 1) // 2)

        def run(rows: Rows = rows, q: torch.Tensor = q, cu: torch.Tensor = cu_seqlens) -> Any:
            return prefill_attention(q, rows.k, rows.v, rows.tables, rows.seq_lens, cu, scale=128**-0.5)

        def error(rows: Rows = rows, q: torch.Tensor = q, cu: torch.Tensor = cu_seqlens, chunk: int = chunk) -> float:
            out = torch.full_like(q, float("nan"))
            prefill_attention(q, rows.k, rows.v, rows.tables, rows.seq_lens, cu, scale=128**-0.5, out=out)
            kv, tables, seq_lens = rows.part(1)
            last = min(chunk, 256)  # the last queries see all keys
            some = torch.tensor([0, last], device=q.device)
            expected = reference.paged_attention(
                q[chunk - last : chunk].float(), kv, tables, seq_lens, some, scale=128**-0.5
            )
            return relative_error(out[chunk - last : chunk], expected) if bool(out.isfinite().all()) else float("inf")

        yield Case(
            "prefill attention", f"{num_rows} x {chunk} over {context}", run, error, "gemm", flops=flops,
            peers=_varlen(rows, q, chunk),
        )  # fmt: skip


def _mix(num_rows: int, median: int, longest: int) -> list[int]:
    draws = torch.randn(num_rows, generator=torch.Generator().manual_seed(0))
    return (draws.exp() * median).clamp(1, longest).long().tolist()


def _varlen(rows: Rows, q: torch.Tensor, chunk: int) -> dict[str, Callable[[], Any]]:
    """torch's kernel on the same keys, unpaged, which is kindest to it; for rows of one length in whole blocks."""
    lengths = set(rows.seq_lens.tolist())
    length, num_rows = max(lengths), len(rows.seq_lens)
    if not q.is_cuda or len(lengths) > 1 or length % BLOCK_SIZE:
        return {}
    k, v = (side.reshape(-1, *side.shape[2:])[: length * num_rows] for side in (rows.k, rows.v))
    cu_q = torch.arange(0, num_rows * chunk + 1, chunk, dtype=torch.int32, device=q.device)
    cu_k = torch.arange(0, num_rows * length + 1, length, dtype=torch.int32, device=q.device)
    scale = q.shape[-1] ** -0.5

    def run() -> Any:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, cu_q, cu_k, chunk, length, scale=scale, window_size=(-1, 0), enable_gqa=True)

    return {"torch varlen": run}
