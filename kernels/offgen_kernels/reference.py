"""The specification of every op, in plain torch, written to be read. Knows no device and no tiling; slow on purpose.

Shapes: T query tokens, R rows, H query heads, G KV heads, D head_dim, B block_size. Everything is summed in float32
(float64 stays float64) and returned in the dtype that came in.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    wide = _wide(x)
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * _wide(weight)).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual); the sum is rounded to x's dtype first."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 * F] as (gate, up) -> silu(gate) * up [..., F]."""
    gate, up = _wide(x).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def gelu_and_mul(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """x [..., 2 * F] as (gate, up) -> gelu(gate) * up [..., F]; approximate is `none` or `tanh`."""
    gate, up = _wide(x).chunk(2, dim=-1)
    return (F.gelu(gate, approximate=approximate) * up).to(x.dtype)


def rope(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first rotary_dim values of each head, halves paired (x[i] with x[i + rotary_dim / 2]).

    x          [T, heads, D]
    positions  [T]
    cos_sin    [max_positions, rotary_dim]   cosines of the rotary_dim / 2 frequencies, then their sines
    """
    half = cos_sin.shape[-1] // 2
    if half == 0:
        return x
    wide = _wide(x)
    table = cos_sin[positions.long()].to(wide.dtype).unsqueeze(1)
    cos, sin = table[..., :half], table[..., half:]
    first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
    return rotated.to(x.dtype)


def write_kv(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Store k, v [T, G, D] in kv_cache [2, num_blocks, B, G, D] at slots [T]; slot -1 is padding and not written."""
    keep = slots >= 0
    where = slots[keep].long()
    for side, values in enumerate((k, v)):
        kv_cache[side].view(-1, *kv_cache.shape[3:])[where] = values[keep].to(kv_cache.dtype)


def rope_and_write_kv(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_cache: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
) -> torch.Tensor:
    """Split qkv [T, (H + 2G) * D], norm each head if asked, rotate q and k, store k and v. Returns q [T, H, D]."""
    head_dim = kv_cache.shape[-1]
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_dim)
    q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    q = q if q_norm is None else rms_norm(q, q_norm, norm_eps)
    k = k if k_norm is None else rms_norm(k, k_norm, norm_eps)
    write_kv(rope(k, positions, cos_sin), v, kv_cache, slots)
    return rope(q, positions, cos_sin).contiguous()


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    logit_soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """One row: its last queries against all its keys, causal.

    q      [Tq, H, D]   the queries of the last Tq positions
    k, v   [Tk, G, D]   Tk >= Tq; each KV head serves H / G query heads in order
    sinks  [H]          logits of a key that takes weight and has no value

    A query sees itself and the keys before it, with a window only the sliding_window - 1 nearest of them.
    """
    num_queries, num_heads, _ = q.shape
    num_keys, num_kv_heads, _ = k.shape
    k, v = (_wide(x).repeat_interleave(num_heads // num_kv_heads, dim=1) for x in (k, v))
    logits = torch.einsum("qhd,khd->hqk", _wide(q), k) * scale
    if logit_soft_cap is not None:
        logits = torch.tanh(logits / logit_soft_cap) * logit_soft_cap
    query_at = torch.arange(num_keys - num_queries, num_keys, device=q.device).unsqueeze(1)
    key_at = torch.arange(num_keys, device=q.device)
    hidden = key_at > query_at
    if sliding_window is not None:
        hidden |= key_at <= query_at - sliding_window
    logits = logits.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        logits = torch.cat((logits, _wide(sinks).view(-1, 1, 1).expand(-1, num_queries, 1)), dim=-1)
    weights = logits.softmax(dim=-1)[..., :num_keys]
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)


def paged_attention(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    logit_soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend each query token to its own row's keys, gathered block by block.

    q             [T, H, D]
    kv_cache      [2, num_blocks, B, G, D]
    block_tables  [R, max_blocks]   -1 past the end
    seq_lens      [R]               this step included
    cu_seqlens_q  [R + 1]           query tokens past the last one are padding: their output is zero

    Returns [T, H, D] in q's dtype.
    """
    block_size = kv_cache.shape[2]
    out = torch.zeros_like(q)
    starts = cu_seqlens_q.tolist()
    for row, num_keys in enumerate(seq_lens.tolist()):
        first, last = starts[row], starts[row + 1]
        if first == last:
            continue
        blocks = block_tables[row, : -(-num_keys // block_size)].long()
        k, v = (kv_cache[side][blocks].flatten(0, 1)[:num_keys] for side in (0, 1))
        out[first:last] = attention(
            q[first:last],
            k,
            v,
            scale=scale,
            sliding_window=sliding_window,
            logit_soft_cap=logit_soft_cap,
            sinks=sinks,
        )
    return out


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] -> int8 values and a float32 scale per row (absmax / 127, half to even): x is about values * scale."""
    wide = _wide(x)
    scale = wide.abs().amax(dim=-1, keepdim=True) / 127
    values = torch.where(scale > 0, wide / scale, torch.zeros_like(wide)).round().clamp(-127, 127)
    return values.to(torch.int8), scale.squeeze(-1).to(torch.float32)


def int8_linear(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, K] quantized per row, times weight int8 [N, K] with weight_scale [N], summed in integers -> [T, N]."""
    values, scale = quantize_rows(x)
    sums = values.to(torch.int64) @ weight.to(torch.int64).T
    out = sums.to(torch.float32) * scale.unsqueeze(-1) * weight_scale
    return (out if bias is None else out + bias).to(x.dtype)
