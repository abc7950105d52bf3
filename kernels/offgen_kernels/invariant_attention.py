"""Paged attention for ragged chunks that sums exactly as decode_attention does, bit for bit.

A token computed in a chunk, in a whole prompt, or one at a time gives the same output, so that preemption, chunk sizes
and cache hits leave no trace. Slower than prefill_attention, whose tiles are larger: keys are read once for each
16 / (H / G) query tokens. Formula and source: split_attention.py.
"""

from __future__ import annotations

import torch

from offgen_kernels.attention_shapes import SPLIT, Tile, check_paged, decode_tile
from offgen_kernels.decode_attention import launch_splits
from offgen_kernels.device import cdiv
from offgen_kernels.merge_splits import merge_splits

MAX_PARTIAL_BYTES = 256 << 20
MAX_GRID = 65535


def invariant_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    positions: torch.Tensor,
    *,
    scale: float,
    max_seq_len: int,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attend each query token to its own row's keys up to its position.

    q             [T, H, D]
    cu_seqlens_q  [R + 1]   int32: row r's queries are its last ones, at [cu_seqlens_q[r], cu_seqlens_q[r + 1])
    positions     [T]       int32
    The rest as in decode_attention.
    """
    shape = check_paged(q, k_cache, v_cache, block_tables, k_scales, v_scales)
    if positions.shape != (q.shape[0],) or cu_seqlens_q.shape[0] != seq_lens.shape[0] + 1:
        raise ValueError("positions need one place for each query, cu_seqlens_q one more than seq_lens")
    out = torch.empty_like(q) if out is None else out
    block_q = max(1, shape.rows // shape.group)
    splits = max(1, cdiv(max_seq_len, SPLIT))
    if window is not None:
        splits = min(splits, cdiv(window + block_q - 2, SPLIT) + 1)
    token_bytes = 4 * shape.num_heads * splits * (shape.head_dim + 1)
    slab = max(1, min(MAX_PARTIAL_BYTES // token_bytes, (MAX_GRID - seq_lens.shape[0] - 2) * block_q))
    for first in range(0, q.shape[0], slab):
        last = min(first + slab, q.shape[0])
        partial = torch.empty((last - first) * splits, shape.num_heads, shape.head_dim, device=q.device)
        lse = torch.empty((last - first) * splits, shape.num_heads, device=q.device)
        first_tile = max(0, first // block_q - 1)
        num_tiles = last // block_q + seq_lens.shape[0] + 1 - first_tile
        launch_splits(
            (shape.num_kv_heads * shape.head_tiles, splits, num_tiles), shape, tile or decode_tile(shape, q.dtype),
            q, k_cache, v_cache, k_scales, v_scales, sinks, out, partial, lse, block_tables, seq_lens,
            cu_seqlens_q=cu_seqlens_q, num_slots=splits, scale=scale, window=window, soft_cap=soft_cap,
            first_tile=first_tile, first_token=first, last_token=last,
        )  # fmt: skip
        if splits > 1:
            merge_splits(
                shape, partial, lse, out, positions, num_tokens=last - first, num_slots=splits, length_offset=1,
                window=window, first_token=first,
            )  # fmt: skip
    return out
