"""Every other op of a step at the shapes of an 8B model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from attention_cases import BLOCK_SIZE, decode_cases, prefill_cases
from case import Case, Scale, relative_error
from offgen_kernels import reference, reference_sampling
from offgen_kernels.gated_activation import silu_and_mul
from offgen_kernels.matmul_invariant import matmul_invariant
from offgen_kernels.rms_norm import add_rms_norm
from offgen_kernels.rope_and_write_kv import rope_and_write_kv
from offgen_kernels.sample import sample


def cases(scale: Scale) -> Iterator[Case]:
    yield from decode_cases(scale)
    yield from prefill_cases(scale)
    yield from sampling_cases(scale)
    yield from small_cases(scale)
    yield from matmul_cases(scale)


def sampling_cases(scale: Scale) -> Iterator[Case]:
    num_rows, vocab = scale.of(256, 3), scale.of(128256, 700)
    logits = torch.randn(num_rows, vocab, device=scale.device) * 3
    keys = torch.arange(num_rows, device=scale.device) * 7919
    rules = {
        "greedy": (0.0, 0, 1.0),
        "temperature": (1.0, 0, 1.0),
        "top-k 50": (1.0, 50, 1.0),
        "top-p 0.9": (1.0, 0, 0.9),
        "top-k 50, top-p 0.9": (0.7, 50, 0.9),
    }
    for name, (temperature, top_k, top_p) in rules.items():
        columns = {
            "temperature": torch.full((num_rows,), temperature, device=scale.device),
            "top_k": torch.full((num_rows,), top_k, dtype=torch.int32, device=scale.device),
            "top_p": torch.full((num_rows,), top_p, device=scale.device),
            "min_p": torch.zeros(num_rows, device=scale.device),
            "keys": keys,
            "positions": keys % 13,
        }

        def run(columns: dict[str, torch.Tensor] = columns) -> Any:
            return sample(logits, **columns)

        def error(columns: dict[str, torch.Tensor] = columns) -> float:
            expected, _ = reference_sampling.sample(logits, **columns)
            return float((sample(logits, **columns)[0] != expected).float().mean())

        yield Case(
            "sample", f"{name} {num_rows} x {vocab}", run, error, "read", num_bytes=4 * num_rows * vocab,
            tolerance=0.01,  # the last bit of a logarithm may decide
            peers={"torch sort": lambda: logits.sort(dim=-1, descending=True)},
        )  # fmt: skip


def small_cases(scale: Scale) -> Iterator[Case]:
    for num_rows in (scale.of(8192, 5), scale.of(256, 3)):
        size, wide = scale.of(4096, 64), scale.of(14336, 96)
        x, residual = (torch.randn(num_rows, size, device=scale.device, dtype=scale.dtype) for _ in range(2))
        weight = torch.randn(size, device=scale.device, dtype=scale.dtype)
        gate_up = torch.randn(num_rows, 2 * wide, device=scale.device, dtype=scale.dtype)
        ceiling, width = ("copy", scale.dtype.itemsize) if num_rows > 256 else ("empty", 0)

        def norm_error(x: torch.Tensor = x, residual: torch.Tensor = residual, w: torch.Tensor = weight) -> float:
            expected, _ = reference.add_rms_norm(x.clone(), residual.clone(), w, 1e-6)
            return relative_error(add_rms_norm(x.clone(), residual.clone(), w, 1e-6)[0], expected)

        def gate_error(gate_up: torch.Tensor = gate_up) -> float:
            return relative_error(silu_and_mul(gate_up), reference.silu_and_mul(gate_up.float()))

        yield Case(
            "residual + RMS norm", f"{num_rows} x {size}",
            lambda x=x, r=residual, w=weight: add_rms_norm(x, r, w, 1e-6), norm_error, ceiling,
            num_bytes=4 * num_rows * size * width,
        )  # fmt: skip
        yield Case(
            "SiLU x mul", f"{num_rows} x {wide}", lambda g=gate_up: silu_and_mul(g), gate_error, ceiling,
            num_bytes=3 * num_rows * wide * width,
        )  # fmt: skip
        yield _rope_case(scale, num_rows)


def _rope_case(scale: Scale, num_rows: int) -> Case:
    qkv = torch.randn(num_rows, 48 * 128, device=scale.device, dtype=scale.dtype)
    cos_sin = torch.rand(4096, 128, device=scale.device)
    num_blocks = -(-num_rows // BLOCK_SIZE)
    cache = torch.zeros(2, num_blocks, 8, BLOCK_SIZE, 128, device=scale.device, dtype=scale.dtype).transpose(2, 3)
    slots = torch.randperm(num_rows, device=scale.device).to(torch.int32)
    norms = {name: torch.rand(128, device=scale.device, dtype=scale.dtype) for name in ("q_norm", "k_norm")}
    shape: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8, **norms}

    def run() -> Any:
        return rope_and_write_kv(qkv, cos_sin, cache[0], cache[1], slots, slots, **shape)

    def error() -> float:
        other = torch.zeros(cache.shape, device=scale.device, dtype=scale.dtype)
        expected = reference.rope_and_write_kv(qkv, cos_sin, other, slots, slots, **shape)
        return max(relative_error(run(), expected), relative_error(cache, other))

    ceiling, width = ("copy", scale.dtype.itemsize) if num_rows > 256 else ("empty", 0)
    return Case(
        "RoPE + KV write + QK norm", f"{num_rows} x 48 x 128", run, error, ceiling,
        num_bytes=2 * num_rows * 48 * 128 * width,
    )  # fmt: skip


def matmul_cases(scale: Scale) -> Iterator[Case]:
    for num_rows in (64, 256, 2048):
        for num_outputs, size in ((4096, 4096), (28672, 4096), (4096, 14336)):
            m, n, k = scale.of(num_rows, 3), scale.of(num_outputs, 64), scale.of(size, 64)
            x = torch.randn(m, k, device=scale.device, dtype=scale.dtype)
            weight = torch.randn(n, k, device=scale.device, dtype=scale.dtype)

            def error(x: torch.Tensor = x, weight: torch.Tensor = weight) -> float:
                whole = matmul_invariant(x, weight)
                if not torch.equal(matmul_invariant(x[:1], weight), whole[:1]):
                    return float("inf")
                return relative_error(whole, x.float() @ weight.float().T)

            yield Case(
                "invariant matmul", f"{m} x {n} x {k}", lambda x=x, w=weight: matmul_invariant(x, w), error, "gemm",
                flops=2 * m * n * k, peers={"cuBLAS": lambda x=x, w=weight: torch.nn.functional.linear(x, w)},
            )  # fmt: skip
