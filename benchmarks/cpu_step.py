"""A bare decode loop and prefill of SmolLM2-135M's shapes on the CPU backend, dummy weights: where a step's time goes.

    python benchmarks/cpu_step.py [--rows 16,32,64,128] [--context 200] [--quantization int8] [--kv int8] [--repeats 10]

Knows no scheduler, sampler or tokenizer: what they cost shows in `offgen bench`. Each figure is the best of several
repeats, so that a busy machine disturbs it least.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from offgen.backends import AttentionInputs, AttentionSpec, open_backend

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, DIM, VOCABULARY = 30, 576, 1536, 9, 3, 64, 49152
BLOCK = 16
SPEC = AttentionSpec(HEADS, KV_HEADS, DIM, DIM**-0.5)
FLOP_PER_TOKEN = 2 * LAYERS * HIDDEN * ((HEADS + 2 * KV_HEADS) * DIM + HEADS * DIM + 3 * INTERMEDIATE)
FLOP_PER_LOGITS = 2 * HIDDEN * VOCABULARY


class Clock:
    """Seconds of every call, by op."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args)
        self.calls[name].append(time.perf_counter() - begin)
        return result


class Step:
    """The model's forward pass, op by op."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        shapes = {
            "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
            "o": (HIDDEN, HEADS * DIM),
            "gate_up": (2 * INTERMEDIATE, HIDDEN),
            "down": (HIDDEN, INTERMEDIATE),
        }
        self.layers = [
            {name: backend.linear(torch.randn(shape) * 0.02) for name, shape in shapes.items()} for _ in range(LAYERS)
        ]
        self.embedding = torch.randn(VOCABULARY, HIDDEN) * 0.02
        self.head = backend.linear(self.embedding)
        self.norm = torch.ones(HIDDEN)
        angles = torch.outer(torch.arange(8192.0), 1e4 ** (-torch.arange(0, DIM, 2) / DIM))
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def __call__(self, ids: torch.Tensor, caches: list[Any], inputs: AttentionInputs, samples: slice) -> Clock:
        backend, clock = self.backend, Clock()
        residual = clock("embedding", backend.embedding, ids, self.embedding)
        x = clock("norm", backend.rms_norm, residual, self.norm, 1e-5)
        for layer, cache in zip(self.layers, caches, strict=True):
            qkv = clock("gemm qkv", layer["qkv"], x)
            q = clock("rope, write", backend.rope_and_write_kv, qkv, self.cos_sin, cache, inputs, SPEC)
            out = clock("attention", backend.paged_attention, q, cache, inputs, SPEC)
            x = clock("gemm o", layer["o"], out.view(len(ids), -1))
            x, residual = clock("norm", backend.add_rms_norm, x, residual, self.norm, 1e-5)
            x = clock("gemm gate_up", layer["gate_up"], x)
            x = clock("activation", backend.silu_and_mul, x)
            x = clock("gemm down", layer["down"], x)
            x, residual = clock("norm", backend.add_rms_norm, x, residual, self.norm, 1e-5)
        logits = clock("gemm logits", self.head, x[samples])
        clock("argmax", torch.argmax, logits, -1)
        return clock


def step_inputs(starts: list[int], lengths: list[int]) -> AttentionInputs:
    """Row i's tokens [starts[i], lengths[i]) are queries; its blocks lie scattered over the pool."""
    blocks = [-(-length // BLOCK) for length in lengths]
    ids = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    tables = torch.full((len(lengths), max(blocks)), -1, dtype=torch.int32)
    for row, part in enumerate(ids.split(blocks)):
        tables[row, : len(part)] = part
    positions = torch.cat([torch.arange(a, b) for a, b in zip(starts, lengths, strict=True)])
    counts = torch.tensor([b - a for a, b in zip(starts, lengths, strict=True)])
    rows = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    return AttentionInputs(
        slots=(tables[rows, positions // BLOCK] * BLOCK + positions % BLOCK).to(torch.int32),
        positions=positions.to(torch.int32),
        block_tables=tables,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        cu_seqlens_q=torch.cat((torch.zeros(1), counts.cumsum(0))).to(torch.int32),
        num_decodes=int((counts == 1).sum()) if counts.max() == 1 else 0,
        max_seq_len=max(lengths),
        block_size=BLOCK,
    )


def measure(step: Step, starts: list[int], lengths: list[int], *, repeats: int) -> dict[str, float]:
    """Seconds of a step by op: each call counts with the fastest of several runs of the same step."""
    inputs, backend = step_inputs(starts, lengths), step.backend
    num_blocks = sum(-(-length // BLOCK) for length in lengths)
    caches = backend.allocate_kv(LAYERS, num_blocks, BLOCK, [SPEC] * LAYERS)
    past = step_inputs([0] * len(lengths), lengths)
    for cache in caches:
        tokens = len(past.positions)
        backend.write_kv(*torch.randn(2, tokens, KV_HEADS, DIM), cache, past)
    ids = torch.randint(VOCABULARY, (len(inputs.positions),))
    samples = slice(None) if inputs.num_decodes else slice(-len(lengths), None)
    clocks = [step(ids, caches, inputs, samples) for _ in range(repeats)]
    return {
        name: sum(min(runs) for runs in zip(*(clock.calls[name] for clock in clocks), strict=True))
        for name in clocks[0].calls
    }


def gemm_limit(repeats: int = 20) -> float:
    """GFLOP/s of torch's own float32 product of 1024 x 1024 matrices."""
    a, b = torch.randn(2, 1024, 1024)
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - begin)
    return 2 * 1024**3 / min(seconds) / 1e9


def show(title: str, seconds: dict[str, float], *, tokens: int, logits: int, limit: float) -> None:
    total = sum(seconds.values())
    gemm = sum(value for name, value in seconds.items() if name.startswith("gemm"))
    flop = tokens * FLOP_PER_TOKEN + logits * FLOP_PER_LOGITS
    rate = flop / total / 1e9
    print(
        f"{title}: {total * 1e3:.1f} ms, {tokens / total:.0f} tokens/s, {rate:.0f} GFLOP/s = {rate / limit:.0%} of GEMM"
    )
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    print(f"  gemm alone {flop / gemm / 1e9:.0f} GFLOP/s; " + ", ".join(f"{n} {s / total:.0%}" for n, s in shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,32,64,128")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--prefill", default="512x1,128x4", help="tokens x rows")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    backend = open_backend(
        "cpu",
        dtype=options.dtype,
        threads=options.threads,
        quantization=options.quantization,
        kv_cache_dtype=options.kv,
    )
    limit = gemm_limit()
    print(f"{torch.get_num_threads()} threads, GEMM limit {limit:.0f} GFLOP/s (float32, 1024 cubed)")
    step = Step(backend)
    for rows in map(int, options.rows.split(",")):
        seconds = measure(step, [options.context - 1] * rows, [options.context] * rows, repeats=options.repeats)
        show(f"decode {rows} rows at {options.context}", seconds, tokens=rows, logits=rows, limit=limit)
    for shape in options.prefill.split(","):
        length, rows = map(int, shape.split("x"))
        seconds = measure(step, [0] * rows, [length] * rows, repeats=options.repeats)
        show(f"prefill {rows} rows of {length}", seconds, tokens=rows * length, logits=rows, limit=limit)


if __name__ == "__main__":
    main()
