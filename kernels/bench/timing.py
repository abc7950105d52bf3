"""How long a launch takes, and what the device could do at best. Medians; on a CPU (smoke runs) a single call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Timing:
    us: float
    spread: float  # (90th - 10th percentile) / median


def time_us(run: Callable[[], object], device: torch.device, *, inner: int = 5, repeats: int = 15) -> Timing:
    """Median time of one run: `inner` of them recorded in a graph, which is replayed, so that no host time counts."""
    if device.type == "cpu":
        started = time.perf_counter()
        run()
        return Timing((time.perf_counter() - started) * 1e6, 0.0)
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            run()
    return _summary([_replay_us(graph) / inner for _ in range(repeats)])


def time_eager_us(run: Callable[[], object], device: torch.device, *, repeats: int = 10) -> Timing:
    """The same for what cannot be recorded."""
    if device.type == "cpu":
        return time_us(run, device)
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return _summary(times)


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def _summary(times: list[float]) -> Timing:
    times.sort()
    median = statistics.median(times)
    return Timing(median, (times[int(0.9 * (len(times) - 1))] - times[int(0.1 * (len(times) - 1))]) / median)


@triton.jit
def _read_kernel(x_ptr, out_ptr, size, PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr):
    """Adds up what it reads, so that the reads are kept."""
    start = tl.program_id(0).to(tl.int64) * PER_PROGRAM
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for offset in tl.range(0, PER_PROGRAM, BLOCK, num_stages=4):
        at = start + offset + i
        total += tl.load(x_ptr + at, mask=at < size, other=0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _empty_kernel(x_ptr):
    pass


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device does at best, measured in this run."""

    read_gb_s: float
    copy_gb_s: float  # read plus written
    gemm_tflop_s: float
    empty_us: float


def measure_ceilings(device: torch.device) -> Ceilings:
    is_small = device.type == "cpu"
    size = (1 << 14) if is_small else (1 << 30)  # 4 GiB of int32, 70 times the L2
    x = torch.randint(-9, 9, (size,), dtype=torch.int32, device=device)
    per_program, block = (4096, 1024) if is_small else (1 << 16, 4096)
    programs = -(-size // per_program)
    out = torch.empty(programs, dtype=torch.int32, device=device)
    read = time_us(lambda: _read_kernel[(programs,)](x, out, size, PER_PROGRAM=per_program, BLOCK=block), device)
    target = torch.empty_like(x)
    copy = time_us(lambda: target.copy_(x), device)
    edge, dtype = (64, torch.float32) if is_small else (8192, torch.bfloat16)
    a, b = (torch.randn(edge, edge, device=device, dtype=dtype) for _ in range(2))
    gemm = time_us(lambda: a @ b.T, device)
    empty = time_us(lambda: _empty_kernel[(1,)](out), device, inner=50)
    return Ceilings(
        read_gb_s=4 * size / read.us / 1e3,
        copy_gb_s=8 * size / copy.us / 1e3,
        gemm_tflop_s=2 * edge**3 / gemm.us / 1e6,
        empty_us=empty.us,
    )
