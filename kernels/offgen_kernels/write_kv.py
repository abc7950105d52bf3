"""Keys and values into their slots of the paged cache, rounded to FP8 with a scale per token and head if it holds FP8.

    cache[slot // B, slot % B, g] = x;      FP8: s = max|x| / 448, cache = x / s, scales[slot] = s

Bytes: 2 * T * G * D * (itemsize read + itemsize written).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.device import cdiv, next_power_of_2
from offgen_kernels.fp8 import to_e4m3

TILE_VALUES = 2048  # values a program of 4 warps holds


@triton.jit
def store_in_slot(
    x,
    is_kept,
    head,
    d,
    slot,
    cache_ptr,
    scales_ptr,
    stride_block,
    stride_token,
    stride_head,
    scales_stride_block,
    scales_stride_token,
    scales_stride_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """x [heads, D] float32 into one slot; rows that are not kept stay away."""
    block = (slot // BLOCK_SIZE).to(tl.int64)
    place = slot % BLOCK_SIZE
    if HAS_SCALES:
        scale = tl.max(tl.abs(x), 1) / 448.0
        x = x / tl.where(scale > 0, scale, 1.0)[:, None]
        values = to_e4m3(tl.minimum(tl.maximum(x, -448.0), 448.0))
        scale_at = scales_ptr + block * scales_stride_block + place * scales_stride_token + head * scales_stride_head
        tl.store(scale_at, scale, mask=is_kept)
    else:
        values = x.to(cache_ptr.dtype.element_ty)
    at = cache_ptr + block * stride_block + place * stride_token + head[:, None] * stride_head + d[None, :]
    tl.store(at, values, mask=is_kept[:, None] & (d < HEAD_DIM)[None, :])


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _write_kv_kernel(
    x_ptr,
    cache_ptr,
    scales_ptr,
    slots_ptr,
    x_stride_token,
    x_stride_head,
    stride_block,
    stride_token,
    stride_head,
    scales_stride_block,
    scales_stride_token,
    scales_stride_head,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    token = tl.program_id(0)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, HEAD_DIM_PADDED)
    is_kept = head < NUM_HEADS
    x_at = x_ptr + token.to(tl.int64) * x_stride_token + head[:, None] * x_stride_head + d[None, :]
    x = tl.load(x_at, mask=is_kept[:, None] & (d < HEAD_DIM)[None, :], other=0.0).to(tl.float32)
    store_in_slot(
        x, is_kept, head, d, slot, cache_ptr, scales_ptr, stride_block, stride_token, stride_head,
        scales_stride_block, scales_stride_token, scales_stride_head, HEAD_DIM, BLOCK_SIZE, HAS_SCALES,
    )  # fmt: skip


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> None:
    """Store k, v [T, G, D] at slots [T] int32; slot -1 is padding and not written.

    k_cache, v_cache    [num_blocks, block_size, G, D]   any strides, D contiguous
    k_scales, v_scales  [num_blocks, block_size, G]      float32, with float8_e4m3fn caches
    """
    for x, cache, scales in ((k, k_cache, k_scales), (v, v_cache, v_scales)):
        _write_side(x, cache, scales, slots)


def _write_side(x: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor | None, slots: torch.Tensor) -> None:
    num_tokens, num_heads, head_dim = x.shape
    if cache.shape[2:] != x.shape[1:] or slots.shape != (num_tokens,):
        raise ValueError(
            f"values {tuple(x.shape)} do not fit cache {tuple(cache.shape)} and slots {tuple(slots.shape)}"
        )
    if x.stride(2) != 1 or cache.stride(3) != 1:
        raise ValueError("the last dimension of values and cache must be contiguous")
    if num_tokens == 0:
        return
    padded = next_power_of_2(head_dim)
    heads = min(next_power_of_2(num_heads), max(1, TILE_VALUES // padded))
    _write_kv_kernel[(num_tokens, cdiv(num_heads, heads))](
        x, cache, scales, slots, x.stride(0), x.stride(1), cache.stride(0), cache.stride(1), cache.stride(2),
        *(scales.stride() if scales is not None else (0, 0, 0)),
        NUM_HEADS=num_heads, HEADS=heads, HEAD_DIM=head_dim, HEAD_DIM_PADDED=padded, BLOCK_SIZE=cache.shape[1],
        HAS_SCALES=scales is not None, num_warps=4,
    )  # fmt: skip
