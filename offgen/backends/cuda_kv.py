"""One layer's paged keys and values on the GPU. Knows layout and bytes; knows no step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offgen.backends.base import AttentionSpec


@dataclass(frozen=True, slots=True)
class CudaKVCache:
    """k, v [num_blocks, block_size, G, D]; scales [num_blocks, block_size, G] float32 where k and v are FP8.

    Stored heads first, so that what one program of attention reads of a block is one contiguous piece.
    """

    k: torch.Tensor
    v: torch.Tensor
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None


def allocate(
    num_blocks: int, block_size: int, spec: AttentionSpec, *, dtype: torch.dtype, device: torch.device
) -> CudaKVCache:
    shape = (2, num_blocks, spec.num_kv_heads, block_size)
    k, v = torch.empty(*shape, spec.head_dim, dtype=dtype, device=device).transpose(2, 3)
    if dtype != torch.float8_e4m3fn:
        return CudaKVCache(k, v, None, None)
    k_scales, v_scales = torch.empty(*shape, dtype=torch.float32, device=device).transpose(2, 3)
    return CudaKVCache(k, v, k_scales, v_scales)


def bytes_per_block(block_size: int, spec: AttentionSpec, *, dtype: torch.dtype) -> int:
    per_head = spec.head_dim * dtype.itemsize + (4 if dtype == torch.float8_e4m3fn else 0)
    return 2 * block_size * spec.num_kv_heads * per_head
