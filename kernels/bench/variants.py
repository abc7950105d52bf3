"""The launches that models make, by name, and a command that compiles them for GPUs that are not there.

    python kernels/bench/variants.py --target sm_90 decode-llama-3.1-8b …     one JSON line for each kernel

Also what the benchmark compiles in parallel before it measures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch  # noqa: E402
from offgen_kernels.decode_attention import decode_attention  # noqa: E402
from offgen_kernels.gated_activation import gelu_and_mul, silu_and_mul  # noqa: E402
from offgen_kernels.invariant_attention import invariant_attention  # noqa: E402
from offgen_kernels.logprobs import token_logprobs, top_logprobs  # noqa: E402
from offgen_kernels.matmul_invariant import matmul_invariant  # noqa: E402
from offgen_kernels.prefill_attention import prefill_attention  # noqa: E402
from offgen_kernels.quantize_rows_fp8 import quantize_rows_fp8  # noqa: E402
from offgen_kernels.rms_norm import add_rms_norm, rms_norm  # noqa: E402
from offgen_kernels.rope_and_write_kv import rope_and_write_kv  # noqa: E402
from offgen_kernels.sample import sample  # noqa: E402
from offgen_kernels.work_plan import plan_work  # noqa: E402
from offgen_kernels.write_kv import write_kv  # noqa: E402

# query heads, KV heads, head_dim, window
HEADS: dict[str, tuple[int, int, int, int | None]] = {
    "smollm2-135m": (9, 3, 64, None),
    "qwen3-0.6b": (16, 8, 128, None),
    "llama-3.1-8b": (32, 8, 128, None),
    "gemma3-1b": (4, 1, 256, 512),
    "phi-96": (32, 32, 96, None),
    "phi-80": (32, 32, 80, None),
    "falcon-7b": (71, 1, 64, None),
}
BLOCK_SIZE, NUM_ROWS, VOCAB = 16, 256, 128256


def variants(dtype: torch.dtype = torch.bfloat16) -> dict[str, Callable[[], Any]]:
    """Every launch, under the name of its op and model."""
    found: dict[str, Callable[[], Any]] = {}
    for model in HEADS:
        for cache in ("", "-fp8"):
            found[f"decode-{model}{cache}"] = lambda model=model, cache=cache: _decode(model, dtype, bool(cache))
            found[f"prefill-{model}{cache}"] = lambda model=model, cache=cache: _prefill(model, dtype, bool(cache))
            found[f"rope-{model}{cache}"] = lambda model=model, cache=cache: _rope(model, dtype, bool(cache))
        found[f"invariant-{model}"] = lambda model=model: _invariant(model, dtype)
    found["decode-llama-3.1-8b-float32"] = lambda: _decode("llama-3.1-8b", torch.float32, False)
    found["prefill-llama-3.1-8b-float32"] = lambda: _prefill("llama-3.1-8b", torch.float32, False)
    found["decode-planned"] = lambda: _decode("llama-3.1-8b", dtype, False, is_planned=True)
    found["small-ops"] = lambda: _small_ops(dtype)
    found["quantize"] = lambda: quantize_rows_fp8(torch.empty(NUM_ROWS, 14336, dtype=dtype))
    found["matmul"] = lambda: _matmul(4096, dtype)
    found["matmul-wide"] = lambda: _matmul(28672, dtype)
    found["sample"] = lambda: _sample(torch.float32)
    found["logprobs"] = _logprobs
    return found


def _caches(model: str, dtype: torch.dtype, is_fp8: bool) -> dict[str, Any]:
    _, num_kv_heads, head_dim, _ = HEADS[model]
    stored = torch.float8_e4m3fn if is_fp8 else dtype
    k, v = torch.empty(2, 64, num_kv_heads, BLOCK_SIZE, head_dim, dtype=stored).transpose(2, 3)
    scales = torch.empty(2, 64, num_kv_heads, BLOCK_SIZE).transpose(2, 3) if is_fp8 else (None, None)
    return {"k_cache": k, "v_cache": v, "k_scales": scales[0], "v_scales": scales[1]}


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32)


def _decode(model: str, dtype: torch.dtype, is_fp8: bool, *, is_planned: bool = False) -> None:
    num_heads, _, head_dim, window = HEADS[model]
    plan = plan_work(_ints(NUM_ROWS), 1000) if is_planned else None
    q = torch.empty(NUM_ROWS, num_heads, head_dim, dtype=dtype)
    decode_attention(
        q, **_caches(model, dtype, is_fp8), block_tables=_ints(NUM_ROWS, 256), seq_lens=_ints(NUM_ROWS), scale=0.1,
        max_seq_len=4096, window=window, plan=plan,
    )  # fmt: skip


def _prefill(model: str, dtype: torch.dtype, is_fp8: bool) -> None:
    num_heads, _, head_dim, window = HEADS[model]
    q = torch.empty(8192, num_heads, head_dim, dtype=dtype)
    prefill_attention(
        q, **_caches(model, dtype, is_fp8), block_tables=_ints(8, 256), seq_lens=_ints(8), cu_seqlens_q=_ints(9),
        scale=0.1, window=window,
    )  # fmt: skip


def _invariant(model: str, dtype: torch.dtype) -> None:
    num_heads, _, head_dim, window = HEADS[model]
    q = torch.empty(64, num_heads, head_dim, dtype=dtype)
    invariant_attention(
        q, **_caches(model, dtype, False), block_tables=_ints(8, 256), seq_lens=_ints(8), cu_seqlens_q=_ints(9),
        positions=_ints(64), scale=0.1, max_seq_len=4096, window=window,
    )  # fmt: skip


def _rope(model: str, dtype: torch.dtype, is_fp8: bool) -> None:
    num_heads, num_kv_heads, head_dim, _ = HEADS[model]
    qkv = torch.empty(NUM_ROWS, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype)
    norm = torch.empty(head_dim, dtype=dtype)
    caches = _caches(model, dtype, is_fp8)
    for norms in ({}, {"q_norm": norm, "k_norm": norm}):
        rope_and_write_kv(
            qkv, torch.empty(4096, head_dim), positions=_ints(NUM_ROWS), slots=_ints(NUM_ROWS), num_heads=num_heads,
            num_kv_heads=num_kv_heads, **caches, **norms,
        )  # fmt: skip
    heads = torch.empty(NUM_ROWS, num_kv_heads, head_dim, dtype=dtype)
    write_kv(heads, heads, **caches, slots=_ints(NUM_ROWS))


def _small_ops(dtype: torch.dtype) -> None:
    x, weight = torch.empty(NUM_ROWS, 4096, dtype=dtype), torch.empty(4096, dtype=dtype)
    rms_norm(x, weight, 1e-5)
    add_rms_norm(x, torch.empty_like(x), weight, 1e-5)
    gate_up = torch.empty(NUM_ROWS, 2 * 14336, dtype=dtype)
    silu_and_mul(gate_up)
    gelu_and_mul(gate_up, "none")
    gelu_and_mul(gate_up, "tanh")


def _matmul(num_outputs: int, dtype: torch.dtype) -> None:
    matmul_invariant(torch.empty(NUM_ROWS, 4096, dtype=dtype), torch.empty(num_outputs, 4096, dtype=dtype))


def _sample(dtype: torch.dtype) -> None:
    floats, longs = torch.zeros(NUM_ROWS), torch.zeros(NUM_ROWS, dtype=torch.int64)
    sample(
        torch.empty(NUM_ROWS, VOCAB, dtype=dtype), temperature=floats, top_k=_ints(NUM_ROWS), top_p=floats,
        min_p=floats, keys=longs, positions=longs,
    )  # fmt: skip


def _logprobs() -> None:
    logits = torch.empty(NUM_ROWS, VOCAB)
    token_logprobs(logits, torch.zeros(NUM_ROWS, dtype=torch.int64))
    top_logprobs(logits, 20)


def main() -> None:
    from aot import TARGETS, compile_launch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, default="sm_90")
    parser.add_argument("names", nargs="*", help="default: all")
    options = parser.parse_args()
    launches = variants()
    for name in options.names or launches:
        for one in compile_launch(launches[name], options.target):
            print(json.dumps({"variant": name, **dataclasses.asdict(one)}), flush=True)


if __name__ == "__main__":
    main()
