"""From the QKV projection to attention in one launch: norm of q and k heads, rotation, k and v into the cache.

    x = rms_norm(x) * w (if asked);   (a, b) -> (a cos - b sin, b cos + a sin),  a = x[i], b = x[i + rotary_dim / 2]

A program holds some heads of one token; each value is read twice, as itself and as its partner, the second time from
L1. Source: Su et al., RoFormer (2021), halves paired as in GPT-NeoX; Qwen3 for the norm.
Bytes: 2 * T * (H + 2G) * D * itemsize, and cos_sin's rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.device import cdiv, next_power_of_2
from offgen_kernels.write_kv import TILE_VALUES, store_in_slot


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _rope_and_write_kv_kernel(
    qkv_ptr,
    cos_sin_ptr,
    positions_ptr,
    slots_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    k_scales_ptr,
    v_scales_ptr,
    norm_eps,
    qkv_stride,
    k_stride_block,
    k_stride_token,
    k_stride_head,
    v_stride_block,
    v_stride_token,
    v_stride_head,
    scales_stride_block,
    scales_stride_token,
    scales_stride_head,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    token = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, HEAD_DIM_PADDED)
    is_d = d < HEAD_DIM
    is_q = head < NUM_HEADS
    is_k = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_v = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS)
    is_turned = is_q | is_k
    in_row = (is_turned | is_v)[:, None] & is_d[None, :]
    row_at = qkv_ptr + token.to(tl.int64) * qkv_stride + head[:, None] * HEAD_DIM

    raw = tl.load(row_at + d[None, :], mask=in_row, other=0.0)
    x = raw.to(tl.float32)
    if HAS_Q_NORM or HAS_K_NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + norm_eps)[:, None]
        is_normed = is_q if not HAS_K_NORM else is_k if not HAS_Q_NORM else is_turned
        weight = _head_weights(q_norm_ptr, k_norm_ptr, d, is_d, is_q, is_k, HAS_Q_NORM, HAS_K_NORM)
        x = tl.where(is_normed[:, None], (x * inverse * weight).to(raw.dtype).to(tl.float32), x)
    if HALF > 0:
        partner_d = tl.where(d < HALF, d + HALF, d - HALF)
        is_partner = d < 2 * HALF
        partner_d = tl.where(is_partner, partner_d, 0)
        in_half = is_turned[:, None] & is_partner[None, :]
        partner = tl.load(row_at + partner_d[None, :], mask=in_half, other=0.0).to(tl.float32)
        if HAS_Q_NORM or HAS_K_NORM:
            weight = _head_weights(q_norm_ptr, k_norm_ptr, partner_d, is_partner, is_q, is_k, HAS_Q_NORM, HAS_K_NORM)
            normed = (partner * inverse * weight).to(raw.dtype).to(tl.float32)
            partner = tl.where(is_normed[:, None], normed, partner)
        table_at = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * HALF)
        angle = tl.where(d < HALF, d, d - HALF)
        cos = tl.load(table_at + angle, mask=is_partner, other=1.0).to(tl.float32)
        sin = tl.load(table_at + HALF + angle, mask=is_partner, other=0.0).to(tl.float32)
        sin = tl.where(d < HALF, -sin, sin)
        x = tl.where(in_half, x * cos[None, :] + partner * sin[None, :], x)

    q_at = q_ptr + (token.to(tl.int64) * NUM_HEADS + head[:, None]) * HEAD_DIM + d[None, :]
    tl.store(q_at, x.to(q_ptr.dtype.element_ty), mask=is_q[:, None] & is_d[None, :])
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    x = x.to(raw.dtype).to(tl.float32)
    store_in_slot(
        x, is_k, head - NUM_HEADS, d, slot, k_ptr, k_scales_ptr, k_stride_block, k_stride_token, k_stride_head,
        scales_stride_block, scales_stride_token, scales_stride_head, HEAD_DIM, BLOCK_SIZE, HAS_SCALES,
    )  # fmt: skip
    store_in_slot(
        x, is_v, head - NUM_HEADS - NUM_KV_HEADS, d, slot, v_ptr, v_scales_ptr, v_stride_block, v_stride_token,
        v_stride_head, scales_stride_block, scales_stride_token, scales_stride_head, HEAD_DIM, BLOCK_SIZE, HAS_SCALES,
    )  # fmt: skip


@triton.jit
def _head_weights(q_norm_ptr, k_norm_ptr, d, is_d, is_q, is_k, HAS_Q_NORM: tl.constexpr, HAS_K_NORM: tl.constexpr):
    """[heads, D]: each row's own norm weights."""
    weight = tl.zeros([is_q.shape[0], d.shape[0]], tl.float32)
    if HAS_Q_NORM:
        q_weight = tl.load(q_norm_ptr + d, mask=is_d, other=0.0).to(tl.float32)
        weight = tl.where(is_q[:, None], q_weight[None, :], weight)
    if HAS_K_NORM:
        k_weight = tl.load(k_norm_ptr + d, mask=is_d, other=0.0).to(tl.float32)
        weight = tl.where(is_k[:, None], k_weight[None, :], weight)
    return weight


def rope_and_write_kv(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Split qkv, norm heads if asked, rotate q and k, store k and v; returns q [T, H, D].

    qkv        [T, (H + 2G) * D]
    cos_sin    [max_positions, rotary_dim]  float32: cosines of the rotary_dim / 2 frequencies, then their sines
    k_cache, v_cache  [num_blocks, block_size, G, D]  any strides, D contiguous
    positions  [T] int32
    slots      [T] int32, -1: padding, not written
    q_norm, k_norm      [D]
    k_scales, v_scales  [num_blocks, block_size, G] float32, with float8_e4m3fn caches
    """
    num_tokens, width = qkv.shape
    head_dim, all_heads = k_cache.shape[3], num_heads + 2 * num_kv_heads
    if width != all_heads * head_dim or k_cache.shape[2] != num_kv_heads or v_cache.shape != k_cache.shape:
        raise ValueError(f"qkv {tuple(qkv.shape)} does not fit {num_heads} + 2 x {num_kv_heads} heads of {head_dim}")
    if qkv.stride(1) != 1 or not cos_sin.is_contiguous() or k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        raise ValueError("cos_sin, and the last dimension of qkv and the caches, must be contiguous")
    if cos_sin.shape[1] > head_dim or cos_sin.shape[1] % 2 or not positions.shape == slots.shape == (num_tokens,):
        raise ValueError(f"cos_sin {tuple(cos_sin.shape)} or positions {tuple(positions.shape)} do not fit")
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return q
    padded = next_power_of_2(head_dim)
    heads = min(next_power_of_2(all_heads), max(1, TILE_VALUES // padded))
    _rope_and_write_kv_kernel[(num_tokens, cdiv(all_heads, heads))](
        qkv, cos_sin, positions, slots, q_norm, k_norm, q, k_cache, v_cache, k_scales, v_scales, norm_eps,
        qkv.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        *(k_scales.stride() if k_scales is not None else (0, 0, 0)),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEADS=heads, HEAD_DIM=head_dim, HEAD_DIM_PADDED=padded,
        HALF=cos_sin.shape[1] // 2, BLOCK_SIZE=k_cache.shape[1], HAS_Q_NORM=q_norm is not None,
        HAS_K_NORM=k_norm is not None, HAS_SCALES=k_scales is not None, num_warps=4,
    )  # fmt: skip
    return q
