"""Paged attention for rows with one query token each. Formula, source and bytes: split_attention.py."""

from __future__ import annotations

import torch

from offgen_kernels.attention_shapes import SPLIT, PagedShape, Tile, check_paged, decode_tile
from offgen_kernels.device import cdiv
from offgen_kernels.merge_splits import merge_splits
from offgen_kernels.split_attention import split_attention_kernel
from offgen_kernels.work_plan import WorkPlan


def num_splits(max_seq_len: int, window: int | None = None) -> int:
    """Splits the grid needs for rows of up to max_seq_len tokens. A window of w keys touches few of them."""
    most = max(1, cdiv(max_seq_len, SPLIT))
    return most if window is None else min(most, cdiv(window - 1, SPLIT) + 1)


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_seq_len: int,
    plan: WorkPlan | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attend each row's last token to all of the row's keys, in splits of a fixed size.

    q                 [R, H, D]
    k_cache, v_cache  [num_blocks, block_size, G, D]   any strides, D contiguous; q's dtype, or float8_e4m3fn
    block_tables      [R, max_blocks]  int32, -1 past the end
    seq_lens          [R]              int32, this step included; 0: a padded row, whose output is zero
    max_seq_len       no row is longer; sets the grid, never the result
    plan              plan_work(seq_lens, …), for rows of unequal lengths: no program for splits that a row does not
                      have. Not used with a window, which has few.
    window            a query sees itself and the window - 1 tokens before it
    sinks             [H]              logits that take weight and have no value
    k_scales, v_scales  [num_blocks, block_size, G] float32: what the stored values are multiplied by

    Returns [R, H, D] in q's dtype, summed in fp32; written into `out` if given.
    Raises ValueError for shapes that do not fit.
    """
    shape = check_paged(q, k_cache, v_cache, block_tables, k_scales, v_scales)
    num_rows = q.shape[0]
    if seq_lens.shape != (num_rows,) or block_tables.shape[0] != num_rows:
        raise ValueError("seq_lens and block_tables need one row for each query")
    out = torch.empty_like(q) if out is None else out
    if num_rows == 0:
        return out
    splits = num_splits(max_seq_len, window)
    if window is not None or splits == 1:
        plan = None
    heads, parts = shape.num_kv_heads * shape.head_tiles, num_rows * splits if plan is None else plan.work.shape[0]
    partial = torch.empty(parts, shape.num_heads, shape.head_dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(parts, shape.num_heads, dtype=torch.float32, device=q.device)
    launch_splits(
        (heads, splits, num_rows) if plan is None else (heads, parts, 1), shape, tile or decode_tile(shape, q.dtype),
        q, k_cache, v_cache, k_scales, v_scales, sinks, out, partial, lse, block_tables, seq_lens, cu_seqlens_q=None,
        plan=plan, num_slots=splits, scale=scale, window=window, soft_cap=soft_cap,
    )  # fmt: skip
    if splits > 1:
        merge_splits(
            shape, partial, lse, out, seq_lens, num_tokens=num_rows, num_slots=splits, length_offset=0, plan=plan,
            window=window,
        )  # fmt: skip
    return out


def launch_splits(
    grid: tuple[int, int, int],
    shape: PagedShape,
    tile: Tile,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    partial: torch.Tensor,
    lse: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor | None,
    num_slots: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    plan: WorkPlan | None = None,
    first_tile: int = 0,
    first_token: int = 0,
    last_token: int = 0,
) -> None:
    """One launch for decode rows (cu_seqlens_q None) and for ragged chunks, so that both sum in the same order."""
    scales_strides = k_scales.stride() if k_scales is not None else (0, 0, 0)
    split_attention_kernel[grid](
        q, k_cache, v_cache, k_scales, v_scales, sinks, out, partial, lse, block_tables, seq_lens, cu_seqlens_q,
        plan.work if plan is not None else None,
        scale, seq_lens.shape[0], first_tile, first_token, last_token, num_slots,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        *scales_strides,
        block_tables.stride(0),
        NUM_HEADS=shape.num_heads,
        GROUP=shape.group,
        ROWS=shape.rows,
        HEAD_DIM=shape.head_dim,
        HEAD_DIM_PADDED=shape.head_dim_padded,
        BLOCK_SIZE=shape.block_size,
        TILE=tile.keys,
        SPLIT=SPLIT,
        WINDOW=window or 0,
        SOFT_CAP=soft_cap or 0.0,
        HAS_SINKS=sinks is not None,
        HAS_SCALES=k_scales is not None,
        HAS_MERGE=num_slots > 1,
        IS_RAGGED=cu_seqlens_q is not None,
        IS_FLAT=plan is not None,
        STAGES=tile.num_stages,
        num_warps=tile.num_warps,
    )  # fmt: skip
