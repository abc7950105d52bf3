"""Paged attention for ragged chunks of queries over cached context: the large-tile kernel for prefill.

    out_i = sum_{t <= i} softmax_t(scale * q_i . k_t) v_t      per row, i and t being positions in the row

A program takes up to M / (H / G) consecutive query tokens of one row with all query heads of one KV head as the rows of
its matrix products, and walks the keys from token 0 (or the first window) up, tile by tile. Tiles that every query sees
whole run without a mask; the last ones, and those at a window's edge, with one. A query's sums do not depend on the
chunk it came in. Late tiles of a row are the longest and are started first.

Source: Dao, FlashAttention-2 (2023); Kwon et al., PagedAttention (2023).
Bytes: keys and values once per program, mostly from L2; FLOPs: 4 * H * D * sum over queries of the keys they see.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.attention_shapes import PagedShape, Tile, check_paged
from offgen_kernels.device import backend_name, cdiv, cuda_capability, next_power_of_2
from offgen_kernels.split_attention import LOG2_E, row_of_tile, soft_capped


@triton.jit
def _attend_range(
    q,
    acc,
    largest,
    total,
    low,
    high,
    position,
    table_at,
    k_ptr,
    v_ptr,
    k_scales_ptr,
    v_scales_ptr,
    scales_head,
    scale,
    k_stride_block,
    k_stride_token,
    v_stride_block,
    v_stride_token,
    scales_stride_block,
    scales_stride_token,
    last_key,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    IS_MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Online softmax over keys [low, high), low a multiple of TILE; keys past last_key do not exist."""
    t = tl.arange(0, TILE)
    d = tl.arange(0, HEAD_DIM_PADDED)
    is_d = (d < HEAD_DIM)[None, :]
    block_ids = tl.load(table_at + (low + t) // BLOCK_SIZE, mask=low + t <= last_key, other=0)
    for start in tl.range(low, high, TILE, num_stages=STAGES):
        key = start + t
        ahead = key + TILE
        next_block_ids = tl.load(table_at + ahead // BLOCK_SIZE, mask=ahead <= last_key, other=0)
        block = block_ids.to(tl.int64)
        slot = key % BLOCK_SIZE
        k_at = (k_ptr + block * k_stride_block + slot * k_stride_token)[:, None] + d[None, :]
        v_at = (v_ptr + block * v_stride_block + slot * v_stride_token)[:, None] + d[None, :]
        if IS_MASKED:
            is_value = (key <= last_key)[:, None] & is_d
            k = tl.load(k_at, mask=is_value, other=0.0)
            v = tl.load(v_at, mask=is_value, other=0.0)
        elif HEAD_DIM == HEAD_DIM_PADDED:
            k = tl.load(k_at)
            v = tl.load(v_at)
        else:
            k = tl.load(k_at, mask=is_d, other=0.0)
            v = tl.load(v_at, mask=is_d, other=0.0)
        s = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        if HAS_SCALES:
            scale_at = scales_head + block * scales_stride_block + slot * scales_stride_token
            s *= tl.load(k_scales_ptr + scale_at, mask=key <= last_key, other=0.0)[None, :]
            v_scale = tl.load(v_scales_ptr + scale_at, mask=key <= last_key, other=0.0)
        if SOFT_CAP > 0:
            s = soft_capped(s * scale, SOFT_CAP) * LOG2_E
        else:
            s = s * (scale * LOG2_E)
        if IS_MASKED:
            is_seen = key[None, :] <= position[:, None]
            if WINDOW > 0:
                is_seen = is_seen & (key[None, :] > position[:, None] - WINDOW)
            s = tl.where(is_seen, s, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(s, 1))
        if IS_MASKED:
            pivot = tl.where(new_largest > float("-inf"), new_largest, 0.0)  # -inf minus -inf is NaN
        else:
            pivot = new_largest
        p = tl.exp2(s - pivot[:, None])
        decay = tl.exp2(largest - pivot)
        total = total * decay + tl.sum(p, 1)
        largest = new_largest
        if HAS_SCALES:
            p = p * v_scale[None, :]
        acc = acc * decay[:, None]
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc, input_precision="ieee")
        block_ids = next_block_ids
    return acc, largest, total


@triton.jit(
    # what changes from step to step must not choose another compilation
    do_not_specialize=["num_rows", "tables_stride"],
    do_not_specialize_on_alignment=["tables_ptr", "seq_lens_ptr", "cu_seqlens_ptr"],
)
def _prefill_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scales_ptr,
    v_scales_ptr,
    sinks_ptr,
    out_ptr,
    tables_ptr,
    seq_lens_ptr,
    cu_seqlens_ptr,
    scale,
    num_rows,
    q_stride_token,
    q_stride_head,
    out_stride_token,
    out_stride_head,
    k_stride_block,
    k_stride_token,
    k_stride_head,
    v_stride_block,
    v_stride_token,
    v_stride_head,
    scales_stride_block,
    scales_stride_token,
    scales_stride_head,
    tables_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid: (KV heads x tiles of their query heads, query tiles)."""
    BLOCK_Q: tl.constexpr = ROWS // HEADS
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(0) // HEAD_TILES
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    row = row_of_tile(cu_seqlens_ptr, tile, num_rows, BLOCK_Q)
    query_start = tl.load(cu_seqlens_ptr + row)
    num_queries = tl.load(cu_seqlens_ptr + row + 1) - query_start
    first_query = (tile - query_start // BLOCK_Q - row) * BLOCK_Q
    if first_query >= num_queries:
        return  # between a row's last tile and the next row's first there may be one to spare

    lane = tl.arange(0, ROWS)
    query = first_query + lane // HEADS
    head_in_group = tl.program_id(0) % HEAD_TILES * HEADS + lane % HEADS
    is_row = (lane < BLOCK_Q * HEADS) & (query < num_queries) & (head_in_group < GROUP)
    token = (query_start + query).to(tl.int64)
    head = kv_head * GROUP + head_in_group
    context = tl.load(seq_lens_ptr + row) - num_queries
    position = context + query
    first_position = context + first_query
    last_key = context + tl.minimum(first_query + BLOCK_Q, num_queries) - 1

    d = tl.arange(0, HEAD_DIM_PADDED)
    is_out = is_row[:, None] & (d < HEAD_DIM)[None, :]
    q_at = q_ptr + token[:, None] * q_stride_token + head[:, None] * q_stride_head + d[None, :]
    q = tl.load(q_at, mask=is_out, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)
    if HAS_SINKS:
        largest = tl.load(sinks_ptr + head, mask=is_row, other=float("-inf")).to(tl.float32) * LOG2_E
        total = tl.where(largest > float("-inf"), 1.0, 0.0)

    # whole tiles that every query sees, then those cut by the diagonal; with a window all are masked, and few
    if WINDOW > 0:
        cut = tl.maximum(first_position - WINDOW + 1, 0) // TILE * TILE
    else:
        cut = (first_position + 1) // TILE * TILE
    table_at = tables_ptr + row.to(tl.int64) * tables_stride
    k_at, v_at = k_ptr + kv_head * k_stride_head, v_ptr + kv_head * v_stride_head
    scales_head = kv_head * scales_stride_head
    if WINDOW == 0:
        acc, largest, total = _attend_range(
            q, acc, largest, total, 0, cut, position, table_at, k_at, v_at, k_scales_ptr, v_scales_ptr, scales_head,
            scale, k_stride_block, k_stride_token, v_stride_block, v_stride_token, scales_stride_block,
            scales_stride_token, last_key, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, HAS_SCALES,
            False, STAGES,
        )  # fmt: skip
    acc, largest, total = _attend_range(
        q, acc, largest, total, cut, last_key + 1, position, table_at, k_at, v_at, k_scales_ptr, v_scales_ptr,
        scales_head, scale, k_stride_block, k_stride_token, v_stride_block, v_stride_token, scales_stride_block,
        scales_stride_token, last_key, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, HAS_SCALES,
        True, STAGES,
    )  # fmt: skip
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    out_at = out_ptr + token[:, None] * out_stride_token + head[:, None] * out_stride_head + d[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=is_out)


def prefill_tile(shape: PagedShape, dtype: torch.dtype) -> tuple[int, Tile]:
    """Rows of queries, and the tile of keys: what the registers of 8 warps and the shared memory hold."""
    wide = shape.head_dim_padded * dtype.itemsize
    if backend_name() == "hip":  # 64 KiB of shared memory
        return (128, Tile(64, 4, 2)) if wide <= 128 else (64, Tile(32, 4, 2)) if wide <= 256 else (32, Tile(16, 4, 2))
    if dtype == torch.float32:  # no tensor cores
        return (32, Tile(32, 4, 2)) if wide <= 256 else (16, Tile(16, 4, 2))
    if 0 < cuda_capability() < 90:  # sums stay in registers
        return (128, Tile(64, 8, 3)) if wide <= 128 else (64, Tile(64, 8, 3)) if wide <= 256 else (32, Tile(32, 4, 3))
    if cuda_capability() >= 100 and wide <= 128:  # the compiler allows 128 registers here
        return 128, Tile(64 if shape.is_quantized else 32, 8, 3)
    return (128, Tile(64, 8, 3)) if wide <= 256 else (64, Tile(32, 8, 3)) if wide <= 512 else (32, Tile(16, 8, 2))


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    rows_and_tile: tuple[int, Tile] | None = None,
) -> torch.Tensor:
    """Attend each row's chunk of queries to the row's cached keys, causal.

    q             [T, H, D]
    cu_seqlens_q  [R + 1]   int32: row r's queries are its last ones, at [cu_seqlens_q[r], cu_seqlens_q[r + 1])
    seq_lens      [R]       int32: keys in the cache, this step's included
    The rest as in decode_attention. Tokens past cu_seqlens_q[R] are left as they are in `out`.

    Returns [T, H, D] in q's dtype, summed in fp32. Raises ValueError for shapes that do not fit.
    """
    shape = check_paged(q, k_cache, v_cache, block_tables, k_scales, v_scales)
    num_rows = seq_lens.shape[0]
    if cu_seqlens_q.shape != (num_rows + 1,) or block_tables.shape[0] != num_rows:
        raise ValueError("cu_seqlens_q needs one place more than seq_lens, block_tables as many rows")
    out = torch.empty_like(q) if out is None else out
    if q.shape[0] == 0 or num_rows == 0:
        return out
    rows, tile = rows_and_tile or prefill_tile(shape, q.dtype)
    heads = min(shape.group, rows)
    num_tiles = q.shape[0] // (rows // heads) + num_rows
    _prefill_attention_kernel[(shape.num_kv_heads * cdiv(shape.group, heads), num_tiles)](
        q, k_cache, v_cache, k_scales, v_scales, sinks, out, block_tables, seq_lens, cu_seqlens_q, scale, num_rows,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        *(k_scales.stride() if k_scales is not None else (0, 0, 0)),
        block_tables.stride(0),
        GROUP=shape.group,
        ROWS=next_power_of_2(rows),
        HEADS=heads,
        HEAD_DIM=shape.head_dim,
        HEAD_DIM_PADDED=shape.head_dim_padded,
        BLOCK_SIZE=shape.block_size,
        TILE=tile.keys,
        WINDOW=window or 0,
        SOFT_CAP=soft_cap or 0.0,
        HAS_SINKS=sinks is not None,
        HAS_SCALES=k_scales is not None,
        STAGES=tile.num_stages,
        num_warps=tile.num_warps,
    )  # fmt: skip
    return out
