"""Log-probabilities of the raw distribution: of given tokens with their ranks, and of the likeliest few.

    logprob_v = x_v - log sum_w e^{x_w};      rank = 1 + #{w : x_w > x_v};      top: by threshold.py, then one by one

Bytes: one read of the logits; with the likeliest, a read for each pass of the search and one to gather.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.device import next_power_of_2
from offgen_kernels.threshold import MAX_CANDIDATES, threshold

_LOG2_E = tl.constexpr(1.4426950408889634)
_TILE = 1024
_STAGES = 4
MAX_TOP = 1024


@triton.jit
def _log2_total(row_ptr, size, chosen, TILE: tl.constexpr, STAGES: tl.constexpr):
    """(log2 of the row's sum of e^x, columns above `chosen`, largest and smallest finite logit)."""
    i = tl.arange(0, TILE)
    peak = tl.full([TILE], float("-inf"), tl.float32)
    smallest = tl.full([TILE], float("inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    num_above = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        x = tl.load(row_ptr + start + i, mask=start + i < size, other=float("-inf")).to(tl.float32)
        num_above += (x > chosen).to(tl.int32)
        smallest = tl.minimum(smallest, tl.where(x > float("-inf"), x, float("inf")))
        new_peak = tl.maximum(peak, x)
        pivot = tl.where(new_peak > float("-inf"), new_peak, 0.0)
        total = total * tl.exp2((peak - pivot) * _LOG2_E) + tl.exp2((x - pivot) * _LOG2_E)
        peak = new_peak
    largest = tl.max(peak, 0)
    pivot = tl.where(largest > float("-inf"), largest, 0.0)
    total = tl.sum(total * tl.exp2((peak - pivot) * _LOG2_E), 0)
    return pivot * _LOG2_E + tl.log2(total), tl.sum(num_above, 0), largest, tl.min(smallest, 0)


@triton.jit
def _token_logprobs_kernel(
    logits_ptr, token_ids_ptr, logprobs_ptr, ranks_ptr, size, logits_stride, TILE: tl.constexpr, STAGES: tl.constexpr
):
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    chosen = tl.load(row_ptr + tl.load(token_ids_ptr + row)).to(tl.float32)
    log2_total, num_above, _, _ = _log2_total(row_ptr, size, chosen, TILE, STAGES)
    tl.store(logprobs_ptr + row, chosen - log2_total / _LOG2_E)
    tl.store(ranks_ptr + row, num_above + 1)


@triton.jit
def _top_logprobs_kernel(
    logits_ptr,
    scratch_ptr,
    columns_ptr,
    ids_ptr,
    logprobs_ptr,
    size,
    logits_stride,
    COUNT: tl.constexpr,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    scratch_ptr += row.to(tl.int64) * CANDIDATES
    columns_ptr += row.to(tl.int64) * CANDIDATES
    log2_total, _, largest, smallest = _log2_total(row_ptr, size, float("inf"), TILE, STAGES)
    limit = size * 0 + COUNT
    floor = threshold(
        row_ptr, scratch_ptr, size, smallest, largest, largest, 1.0, limit, 1.0, True, TILE, CANDIDATES, STAGES
    )

    # what is above goes to the first PLACES, what ties with the last to the second, in order of columns
    i = tl.arange(0, TILE)
    num_above = size * 0
    num_ties = size * 0
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        x = tl.load(row_ptr + start + i, mask=start + i < size, other=float("-inf")).to(tl.float32)
        is_above = (x > floor).to(tl.int32)
        is_tie = (x == floor).to(tl.int32)
        place = num_above + tl.cumsum(is_above, 0) - 1
        tie_place = num_ties + tl.cumsum(is_tie, 0) - 1
        place = tl.where(is_above > 0, place, PLACES + tie_place)
        is_kept = (is_above > 0) | ((is_tie > 0) & (tie_place < PLACES))
        tl.store(scratch_ptr + place, x, mask=is_kept)
        tl.store(columns_ptr + place, start + i, mask=is_kept)
        num_above += tl.sum(is_above, 0)
        num_ties += tl.sum(is_tie, 0)
    tl.debug_barrier()  # other threads stored them
    j = tl.arange(0, 2 * PLACES)
    is_there = (j < num_above) | ((j >= PLACES) & (j - PLACES < num_ties))
    x = tl.load(scratch_ptr + j, mask=is_there, other=float("-inf"))
    column = tl.load(columns_ptr + j, mask=is_there, other=-1)
    for place in tl.range(0, COUNT):
        best = tl.max(x, 0)
        winner = tl.min(tl.where(x == best, column, size), 0)
        tl.store(ids_ptr + row.to(tl.int64) * COUNT + place, winner.to(tl.int64))
        tl.store(logprobs_ptr + row.to(tl.int64) * COUNT + place, best - log2_total / _LOG2_E)
        x = tl.where((x == best) & (column == winner), float("-inf"), x)
        column = tl.where(x == float("-inf"), -1, column)


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [S, V], rows contiguous; token_ids [S] int64 -> (logprobs [S] float32, ranks [S] int32)."""
    num_rows, size = logits.shape
    if token_ids.shape != (num_rows,) or logits.stride(1) != 1:
        raise ValueError(f"token_ids {tuple(token_ids.shape)} do not fit logits {tuple(logits.shape)}")
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if num_rows:
        _token_logprobs_kernel[(num_rows,)](
            logits, token_ids, logprobs, ranks, size, logits.stride(0), TILE=_TILE, STAGES=_STAGES, num_warps=8
        )
    return logprobs, ranks


def top_logprobs(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [S, V], rows contiguous -> (ids [S, count] int64, logprobs [S, count] float32): the likeliest first.

    Equals come in order of their columns. Where fewer than `count` logits are above -inf, the rest are id -1 at -inf.
    """
    num_rows, size = logits.shape
    if not 0 < count <= min(size, MAX_TOP) or logits.stride(1) != 1:
        raise ValueError(f"{count} of {size} columns cannot be had: 1 to {min(size, MAX_TOP)}, of contiguous rows")
    ids = torch.empty(num_rows, count, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(num_rows, count, dtype=torch.float32, device=logits.device)
    if num_rows:
        scratch = torch.empty(num_rows, MAX_CANDIDATES, dtype=torch.float32, device=logits.device)
        columns = torch.empty(num_rows, MAX_CANDIDATES, dtype=torch.int32, device=logits.device)
        _top_logprobs_kernel[(num_rows,)](
            logits, scratch, columns, ids, logprobs, size, logits.stride(0), COUNT=count,
            PLACES=next_power_of_2(count), TILE=_TILE, CANDIDATES=MAX_CANDIDATES, STAGES=_STAGES, num_warps=8,
        )  # fmt: skip
    return ids, logprobs
