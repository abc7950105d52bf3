"""Which row and split each program of a decode launch takes, so that none is launched for what is not there.

    items = sum_r max(1, ceil(len_r / SPLIT))

A grid of rows x the longest row's splits is mostly empty where lengths differ: 256 rows of 1,000 tokens beside one of
32,000 are 600 splits and 16,000 programs. One small launch a step, for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from offgen_kernels.attention_shapes import SPLIT
from offgen_kernels.device import cdiv, next_power_of_2

MAX_PLAN_ROWS = 2048
_PLAN_VALUES = 16384  # rows x items that a program holds in registers


@triton.jit(do_not_specialize=["num_rows", "num_items"], do_not_specialize_on_alignment=["seq_lens_ptr"])
def _plan_work_kernel(
    seq_lens_ptr,
    work_ptr,
    starts_ptr,
    num_rows,
    num_items,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """Which row and split each program of a flat grid takes: row + 65536 * split, -1 past the end.

    Every row has a split at least. Grid: (tiles of items,); each program adds up the splits of all rows anew.
    """
    r = tl.arange(0, ROWS)
    seq_len = tl.load(seq_lens_ptr + r, mask=r < num_rows, other=0)
    splits = tl.where(r < num_rows, tl.maximum((seq_len + SPLIT - 1) // SPLIT, 1), 0)
    ends = tl.cumsum(splits, 0)
    if tl.program_id(0) == 0:
        tl.store(starts_ptr + r, ends - splits, mask=r < num_rows)
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    is_before = ends[:, None] <= item[None, :]
    row = tl.sum(is_before.to(tl.int32), 0)
    start = tl.max(tl.where(is_before, ends[:, None], 0), 0)
    work = tl.where(row < num_rows, row + ((item - start) << 16), -1)
    tl.store(work_ptr + item, work, mask=item < num_items)


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """Which row and split each program takes, one list for all layers of a step: none for splits that are not there.

    work    [items]  int32: row + 65536 * split, -1 past the end
    starts  [R]      int32: each row's first item
    """

    work: torch.Tensor
    starts: torch.Tensor


def num_work_items(num_rows: int, total_seq_len: int) -> int:
    """Splits that rows of total_seq_len tokens together have at most."""
    return num_rows + total_seq_len // SPLIT


def plan_work(seq_lens: torch.Tensor, num_items: int) -> WorkPlan:
    """seq_lens [R] int32; num_items: `num_work_items` or more. A row of length 0 has one item, which writes zeros."""
    num_rows = seq_lens.shape[0]
    if num_rows > MAX_PLAN_ROWS:
        raise ValueError(f"{num_rows} rows are more than {MAX_PLAN_ROWS}")
    work = torch.empty(num_items, dtype=torch.int32, device=seq_lens.device)
    starts = torch.empty(num_rows, dtype=torch.int32, device=seq_lens.device)
    rows = max(16, next_power_of_2(num_rows))
    items = min(64, _PLAN_VALUES // rows)
    _plan_work_kernel[(cdiv(num_items, items),)](
        seq_lens, work, starts, num_rows, num_items, SPLIT=SPLIT, ROWS=rows, ITEMS=items, num_warps=4
    )
    return WorkPlan(work, starts)
