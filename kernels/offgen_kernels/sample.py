"""From logits to token ids in one launch: greedy, temperature, top-k, top-p, min-p, each row by its own parameters.

    kept = {v : x_v >= t},  t by threshold.py;      id = argmax_{kept} x_v / T + g_v,  g_v = -log(-log(1 - u_v))

u_v is hashed from (key, position, v), so what a row draws depends on nothing but its own logits. One program a row.
A greedy row, and a row with a temperature only, is read once; others once more for each pass of the search.
Source: Gumbel (1954), the Gumbel-max trick; see reference_sampling.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.threshold import MAX_CANDIDATES, threshold

_LOG2_E = tl.constexpr(1.4426950408889634)
_TILE = 1024  # 4 values a thread: two programs fit a processor
_STAGES = 4


@triton.jit
def _row_state(key, position):
    """SplitMix64 of the row's key and position."""
    state = key.to(tl.uint64) + (position + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _mixed_32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _gumbel(column, low, high):
    bits = _mixed_32(_mixed_32((column.to(tl.uint32) * 0x9E3779B1) ^ low) ^ high)
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    waiting = tl.where(u < 0.0009765625, u * (1.0 + u * (0.5 + u / 3.0)), -tl.log(1.0 - u))
    return -tl.log(waiting)


@triton.jit
def _best_of_row(
    row_ptr, size, inverse_temperature, floor, low, high, WITH_NOISE: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """(column of the best score, largest and smallest finite logit, whether all are in order) over logits >= floor."""
    i = tl.arange(0, TILE)
    best = tl.full([TILE], float("-inf"), tl.float32)
    best_column = tl.zeros([TILE], tl.int32)
    largest = tl.full([TILE], float("-inf"), tl.float32)
    smallest = tl.full([TILE], float("inf"), tl.float32)
    num_bad = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        column = start + i
        x = tl.load(row_ptr + column, mask=column < size, other=float("-inf")).to(tl.float32)
        num_bad += ((x != x) | (x == float("inf"))).to(tl.int32)
        largest = tl.maximum(largest, x)
        smallest = tl.minimum(smallest, tl.where(x > float("-inf"), x, float("inf")))
        score = x
        if WITH_NOISE:
            score = tl.where(x >= floor, x * inverse_temperature + _gumbel(column, low, high), float("-inf"))
        is_better = score > best
        best = tl.where(is_better, score, best)
        best_column = tl.where(is_better, column, best_column)
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, best_column, size), 0)
    peak = tl.max(largest, 0)
    is_good = (tl.sum(num_bad, 0) == 0) & (peak > float("-inf"))
    return chosen, peak, tl.min(smallest, 0), is_good


@triton.jit
def _sample_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    keys_ptr,
    positions_ptr,
    scratch_ptr,
    out_ptr,
    non_finite_ptr,
    size,
    logits_stride,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    scratch_ptr += row.to(tl.int64) * CANDIDATES
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    state = _row_state(tl.load(keys_ptr + row), tl.load(positions_ptr + row))
    low = state.to(tl.uint32)
    high = (state >> 32).to(tl.uint32)

    has_top_k = (top_k > 0) & (top_k < size)
    is_drawn = temperature > 0
    is_cut = is_drawn & (has_top_k | (top_p < 1.0) | (min_p > 0.0))
    inverse = 1.0 / tl.where(is_drawn, temperature, 1.0)
    floor = tl.full([], float("-inf"), tl.float32)
    if is_drawn & (not is_cut):
        chosen, peak, smallest, is_good = _best_of_row(row_ptr, size, inverse, floor, low, high, True, TILE, STAGES)
    else:
        chosen, peak, smallest, is_good = _best_of_row(row_ptr, size, inverse, floor, low, high, False, TILE, STAGES)
    if is_cut & is_good:
        floor = smallest
        rate = inverse * _LOG2_E
        if has_top_k:
            floor = threshold(
                row_ptr, scratch_ptr, size, floor, peak, peak, rate, top_k, top_p, True, TILE, CANDIDATES, STAGES
            )
        if top_p < 1.0:
            floor = threshold(
                row_ptr, scratch_ptr, size, floor, peak, peak, rate, top_k, top_p, False, TILE, CANDIDATES, STAGES
            )
        if min_p > 0.0:
            floor = tl.maximum(floor, tl.minimum(peak + temperature * tl.log(min_p), peak))
        chosen, _, _, _ = _best_of_row(row_ptr, size, inverse, floor, low, high, True, TILE, STAGES)
    tl.store(out_ptr + row, tl.where(is_good, chosen, 0).to(tl.int64))
    tl.store(non_finite_ptr + row, tl.where(is_good, 0, 1).to(tl.int8))


def sample(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    keys: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row.

    logits       [S, V]  float32, bfloat16 or float16, rows contiguous
    temperature  [S]     float32; 0: greedy, the first of equals
    top_k        [S]     int32; 0 or less, or V and more: off
    top_p        [S]     float32; 1 or more: off
    min_p        [S]     float32; 0 or less: off
    keys         [S]     int64: the stream of each row's sample, hashed from seed, row and sample index
    positions    [S]     int64: how many tokens each sample has already

    Returns (token ids [S] int64, non-finite [S] bool). A row with NaN, +inf or nothing but -inf is non-finite: id 0.
    Raises ValueError for shapes or dtypes that do not fit.
    """
    num_rows, size = logits.shape
    for name, given, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
        ("keys", keys, torch.int64),
        ("positions", positions, torch.int64),
    ):
        if given.shape != (num_rows,) or given.dtype != dtype or not given.is_contiguous():
            raise ValueError(f"{name} must be [{num_rows}] {dtype}, contiguous")
    if logits.stride(1) != 1:
        raise ValueError("rows of logits must be contiguous")
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    non_finite = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows:
        scratch = torch.empty(num_rows, MAX_CANDIDATES, dtype=torch.float32, device=logits.device)
        _sample_kernel[(num_rows,)](
            logits, temperature, top_k, top_p, min_p, keys, positions, scratch, out, non_finite.view(torch.int8), size,
            logits.stride(0), TILE=_TILE, CANDIDATES=MAX_CANDIDATES, STAGES=_STAGES, num_warps=8,
        )  # fmt: skip
    return out, non_finite
