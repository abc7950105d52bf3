"""The kernel under decode_attention and invariant_attention: a program attends to one split of a row's keys.

    s_t = scale * q . k_t,  capped by c * tanh(s / c),  hidden outside the window;  out = sum_t softmax(s)_t v_t

A row's keys are cut into splits of SPLIT tokens, counted from token 0, so that which numbers are summed in which order
depends on the row alone. A split keeps (sum_t 2^(s_t - m) v_t / l, m + log2 l) in base 2; the merge weighs splits by
2^(lse_i - max lse). The query heads that share a KV head are the rows of one matrix product, padded to 16.

The ids of the next tile's blocks are loaded one tile ahead and carried through the loop: an id loaded and used in the
same iteration would leave the compiler a single K and V buffer, and nothing would overlap.

Source: Dao et al., Flash-Decoding (2023); Kwon et al., PagedAttention (2023); sinks as in gpt-oss.
Bytes: 2 * sum(seq_lens) * num_kv_heads * head_dim * itemsize, and per split and query head 8 * head_dim more.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_of_tile(cu_seqlens_ptr, tile, num_rows, BLOCK_Q: tl.constexpr):
    """The row that owns query tile `tile`, where row r has its tiles from cu_seqlens[r] // BLOCK_Q + r on."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_ptr + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def soft_capped(s, CAP: tl.constexpr):
    """CAP * tanh(s / CAP); 2^x overflows to inf, which gives 1, as it should."""
    return CAP - 2.0 * CAP / (tl.exp2(s * (2.0 * LOG2_E / CAP)) + 1.0)


@triton.jit
def _decode_rows(seq_lens_ptr, work_ptr, token_in_tile, IS_FLAT: tl.constexpr):
    """(row, split of the row, each lane's token and position, lanes with a token, first and last position)."""
    if IS_FLAT:
        item = tl.load(work_ptr + tl.program_id(1))
        row = tl.maximum(item, 0) & 0xFFFF
        split_of_row = item >> 16  # -1 past the end
        seq_len = tl.load(seq_lens_ptr + row, mask=item >= 0, other=0)
    else:
        row = tl.program_id(2)
        split_of_row = tl.program_id(1)
        seq_len = tl.load(seq_lens_ptr + row)
    token = row + token_in_tile
    position = seq_len - 1 + token_in_tile * 0
    return row, split_of_row, token, position, token_in_tile < 1, seq_len - 1, seq_len - 1


@triton.jit
def _chunk_rows(
    seq_lens_ptr, cu_seqlens_ptr, num_rows, first_tile, first_token, last_token, token_in_tile, BLOCK_Q: tl.constexpr
):
    """The same for a tile of a chunk's queries."""
    tile = tl.program_id(2) + first_tile
    row = row_of_tile(cu_seqlens_ptr, tile, num_rows, BLOCK_Q)
    query_start = tl.load(cu_seqlens_ptr + row)
    num_queries = tl.load(cu_seqlens_ptr + row + 1) - query_start
    first_query = (tile - query_start // BLOCK_Q - row) * BLOCK_Q
    query = first_query + token_in_tile
    token = query_start + query
    context = tl.load(seq_lens_ptr + row) - num_queries
    has_token = (token_in_tile < BLOCK_Q) & (query < num_queries) & (token >= first_token) & (token < last_token)
    last = context + tl.minimum(first_query + BLOCK_Q, num_queries) - 1
    # between a row's last tile and the next row's first there may be one to spare
    last = tl.where(first_query < num_queries, last, -1)
    return row, tl.program_id(1), token, context + query, has_token, context + first_query, last


@triton.jit
def _attend_split(
    q,
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
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Online softmax over keys [low, high): (weighted values, largest logit in base 2, sum of weights)."""
    acc = tl.zeros([q.shape[0], HEAD_DIM_PADDED], tl.float32)
    d = tl.arange(0, HEAD_DIM_PADDED)
    is_d = d < HEAD_DIM
    t = tl.arange(0, TILE)
    block_ids = tl.load(table_at + (low + t) // BLOCK_SIZE, mask=low + t < high, other=0)
    for start in tl.range(low, high, TILE, num_stages=STAGES):
        key = start + t
        is_key = key < high
        ahead = key + TILE
        next_block_ids = tl.load(table_at + ahead // BLOCK_SIZE, mask=ahead < high, other=0)

        block = block_ids.to(tl.int64)
        slot = key % BLOCK_SIZE
        k_at = k_ptr + block * k_stride_block + slot * k_stride_token
        v_at = v_ptr + block * v_stride_block + slot * v_stride_token
        is_value = is_key[:, None] & is_d[None, :]
        k = tl.load(k_at[:, None] + d[None, :], mask=is_value, other=0.0)
        v = tl.load(v_at[:, None] + d[None, :], mask=is_value, other=0.0)
        s = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale
        if HAS_SCALES:
            scale_at = scales_head + block * scales_stride_block + slot * scales_stride_token
            s *= tl.load(k_scales_ptr + scale_at, mask=is_key, other=0.0)[None, :]
            v_scale = tl.load(v_scales_ptr + scale_at, mask=is_key, other=0.0)
        if SOFT_CAP > 0:
            s = soft_capped(s, SOFT_CAP)
        is_seen = key[None, :] <= position[:, None]
        if WINDOW > 0:
            is_seen = is_seen & (key[None, :] > position[:, None] - WINDOW)
        s = tl.where(is_seen, s * LOG2_E, float("-inf"))

        new_largest = tl.maximum(largest, tl.max(s, 1))
        pivot = tl.where(new_largest > float("-inf"), new_largest, 0.0)  # -inf minus -inf is NaN
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
    do_not_specialize=["num_rows", "first_tile", "first_token", "last_token", "num_slots", "tables_stride"],
    do_not_specialize_on_alignment=["tables_ptr", "seq_lens_ptr", "cu_seqlens_ptr"],
)
def split_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scales_ptr,
    v_scales_ptr,
    sinks_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    tables_ptr,
    seq_lens_ptr,
    cu_seqlens_ptr,
    work_ptr,
    scale,
    num_rows,
    first_tile,
    first_token,
    last_token,
    num_slots,
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
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_MERGE: tl.constexpr,
    IS_RAGGED: tl.constexpr,
    IS_FLAT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid: (KV heads x tiles of query heads, splits, rows or query tiles); flat: (the same, items of a plan)."""
    BLOCK_Q: tl.constexpr = ROWS // GROUP if GROUP < ROWS else 1  # query tokens that fit a tile; decode has one
    HEAD_TILES: tl.constexpr = (GROUP + ROWS - 1) // ROWS
    kv_head = tl.program_id(0) // HEAD_TILES
    lane = tl.arange(0, ROWS)
    token_in_tile = lane // GROUP if HEAD_TILES == 1 else lane * 0
    head_in_group = lane % GROUP if HEAD_TILES == 1 else tl.program_id(0) % HEAD_TILES * ROWS + lane
    if IS_RAGGED:
        row, split_of_row, token, position, is_row, first_position, last_position = _chunk_rows(
            seq_lens_ptr, cu_seqlens_ptr, num_rows, first_tile, first_token, last_token, token_in_tile, BLOCK_Q
        )
    else:
        row, split_of_row, token, position, is_row, first_position, last_position = _decode_rows(
            seq_lens_ptr, work_ptr, token_in_tile, IS_FLAT
        )
    is_row = is_row & (head_in_group < GROUP)
    head = kv_head * GROUP + head_in_group
    d = tl.arange(0, HEAD_DIM_PADDED)[None, :]
    is_out = is_row[:, None] & (d < HEAD_DIM)
    out_at = out_ptr + token.to(tl.int64)[:, None] * out_stride_token + head[:, None] * out_stride_head + d
    if (last_position < 0) & (split_of_row == 0):  # a padded row
        tl.store(out_at, tl.zeros([ROWS, HEAD_DIM_PADDED], dtype=out_ptr.dtype.element_ty), mask=is_out)

    # which keys: this split's, less what lies before every window and after the last query
    first_key = tl.maximum(first_position - WINDOW + 1, 0) if WINDOW > 0 else first_position * 0
    split = first_key // SPLIT + split_of_row
    low = tl.maximum(split * SPLIT, first_key // TILE * TILE)
    high = tl.minimum(split * SPLIT + SPLIT, last_position + 1)
    if low >= high:
        return
    first_split = tl.maximum(position - WINDOW + 1, 0) // SPLIT if WINDOW > 0 else position * 0
    num_splits = position // SPLIT + 1 - first_split

    q_at = q_ptr + token.to(tl.int64)[:, None] * q_stride_token + head[:, None] * q_stride_head + d
    q = tl.load(q_at, mask=is_out, other=0.0)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head, mask=is_row, other=float("-inf")).to(tl.float32) * LOG2_E
        largest = tl.where(first_split == split, sink, largest)
    total = tl.where(largest > float("-inf"), 1.0, 0.0)
    acc, largest, total = _attend_split(
        q, largest, total, low, high, position, tables_ptr + row.to(tl.int64) * tables_stride,
        k_ptr + kv_head * k_stride_head, v_ptr + kv_head * v_stride_head, k_scales_ptr, v_scales_ptr,
        kv_head * scales_stride_head, scale, k_stride_block, k_stride_token, v_stride_block, v_stride_token,
        scales_stride_block, scales_stride_token, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP,
        HAS_SCALES, STAGES,
    )  # fmt: skip

    is_any = total > 0
    acc = acc / tl.where(is_any, total, 1.0)[:, None]
    owns = is_row & (split >= first_split) & (split < first_split + num_splits)
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=(owns & (num_splits == 1))[:, None] & is_out)
    if HAS_MERGE:
        slot = token * 0 + tl.program_id(1) if IS_FLAT else (token - first_token) * num_slots + split % num_slots
        part = slot.to(tl.int64) * NUM_HEADS + head
        lse = tl.where(is_any, largest + tl.log2(tl.where(is_any, total, 1.0)), float("-inf"))
        parts = owns & (num_splits > 1)
        tl.store(lse_ptr + part, lse, mask=parts)
        tl.store(partial_ptr + part[:, None] * HEAD_DIM + d, acc, mask=parts[:, None] & is_out)
