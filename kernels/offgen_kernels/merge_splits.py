"""Merges what the splits of a row's keys found.

    out = sum_i 2^(lse_i - max lse) out_i / sum_i 2^(lse_i - max lse)

Always in chunks of 16 splits, in order: neither the grid's size nor a neighbour can change a sum.
Source: Dao et al., Flash-Decoding (2023). Bytes: 4 * splits * (head_dim + 1) per row and query head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.attention_shapes import SPLIT, PagedShape
from offgen_kernels.work_plan import WorkPlan

_CHUNK = 16


@triton.jit(do_not_specialize=["first_token", "num_slots"], do_not_specialize_on_alignment=["lengths_ptr"])
def _merge_splits_kernel(
    partial_ptr,
    lse_ptr,
    out_ptr,
    lengths_ptr,
    starts_ptr,
    first_token,
    num_slots,
    out_stride_token,
    out_stride_head,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    LENGTH_OFFSET: tl.constexpr,
    IS_FLAT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid: (heads, tokens)."""
    head = tl.program_id(0)
    token = tl.program_id(1)
    length = tl.load(lengths_ptr + first_token + token) + LENGTH_OFFSET
    if WINDOW > 0:
        first_split = tl.maximum(length - WINDOW, 0) // SPLIT
    else:
        first_split = 0
    num_splits = (length + SPLIT - 1) // SPLIT - first_split
    if num_splits <= 1:
        return

    if IS_FLAT:
        base = tl.load(starts_ptr + token).to(tl.int64) * NUM_HEADS + head
        num_slots = num_splits  # they lie in a row
    else:
        base = token.to(tl.int64) * num_slots * NUM_HEADS + head
    lane = tl.arange(0, CHUNK)
    d = tl.arange(0, HEAD_DIM_PADDED)
    largest = tl.full([CHUNK], float("-inf"), tl.float32)
    for start in tl.range(0, num_splits, CHUNK):
        slot = (first_split + start + lane) % num_slots * NUM_HEADS
        lse = tl.load(lse_ptr + base + slot, mask=start + lane < num_splits, other=float("-inf"))
        largest = tl.maximum(largest, lse)
    pivot = tl.max(largest, 0)
    pivot = tl.where(pivot > float("-inf"), pivot, 0.0)

    total = 0.0
    acc = tl.zeros([HEAD_DIM_PADDED], tl.float32)
    for start in tl.range(0, num_splits, CHUNK):
        is_split = start + lane < num_splits
        slot = (first_split + start + lane) % num_slots * NUM_HEADS
        lse = tl.load(lse_ptr + base + slot, mask=is_split, other=float("-inf"))
        weight = tl.exp2(lse - pivot)
        mask = is_split[:, None] & (d < HEAD_DIM)[None, :]
        part = tl.load(partial_ptr + (base + slot)[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)
        total += tl.sum(weight, 0)
        acc += tl.sum(part * weight[:, None], 0)
    out_at = out_ptr + (first_token + token).to(tl.int64) * out_stride_token + head * out_stride_head + d
    acc = acc / tl.where(total > 0, total, 1.0)
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


def merge_splits(
    shape: PagedShape,
    partial: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    lengths: torch.Tensor,
    *,
    num_tokens: int,
    num_slots: int,
    length_offset: int,
    window: int | None,
    plan: WorkPlan | None = None,
    first_token: int = 0,
) -> None:
    """lengths [T] + length_offset: keys that each token sees or that its window hides, as the splits were made for."""
    _merge_splits_kernel[(shape.num_heads, num_tokens)](
        partial, lse, out, lengths, plan.starts if plan is not None else None, first_token, num_slots, out.stride(0),
        out.stride(1),
        NUM_HEADS=shape.num_heads,
        HEAD_DIM=shape.head_dim,
        HEAD_DIM_PADDED=shape.head_dim_padded,
        SPLIT=SPLIT,
        WINDOW=window or 0,
        LENGTH_OFFSET=length_offset,
        IS_FLAT=plan is not None,
        CHUNK=_CHUNK,
        num_warps=4,
    )  # fmt: skip
