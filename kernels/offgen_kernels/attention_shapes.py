"""What the attention launchers share: checks of shapes, and the tile that fits a head on a device. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offgen_kernels.device import backend_name, cdiv, next_power_of_2

SPLIT = 512  # keys a program reads: under 2 % extra bytes for partial sums, and no ragged last wave
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class PagedShape:
    """The sizes of one call, all checked."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    is_quantized: bool

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def rows(self) -> int:
        """Rows of one matrix product: a tensor core takes no fewer than 16."""
        return min(max(16, next_power_of_2(self.group)), MAX_ROWS)

    @property
    def head_tiles(self) -> int:
        return cdiv(self.group, self.rows)

    @property
    def head_dim_padded(self) -> int:
        return max(16, next_power_of_2(self.head_dim))


@dataclass(frozen=True, slots=True)
class Tile:
    keys: int
    num_warps: int
    num_stages: int


def check_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
) -> PagedShape:
    """Raises ValueError for shapes that no kernel here takes."""
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    if q.dim() != 3 or q.shape[2] != head_dim or q.shape[1] % num_kv_heads:
        raise ValueError(f"q {tuple(q.shape)} does not fit a cache of {num_kv_heads} heads of {head_dim}")
    if v_cache.shape != k_cache.shape or v_cache.dtype != k_cache.dtype:
        raise ValueError(f"k_cache {tuple(k_cache.shape)} and v_cache {tuple(v_cache.shape)} differ")
    if q.stride(2) != 1 or k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        raise ValueError("the last dimension of q, k_cache and v_cache must be contiguous")
    if block_tables.dtype != torch.int32 or block_tables.stride(1) != 1:
        raise ValueError("block_tables must be int32 with contiguous rows")
    if head_dim > 512:
        raise ValueError(f"head_dim {head_dim} is above 512")
    if (k_scales is None) != (v_scales is None):
        raise ValueError("k_scales and v_scales come together")
    for scales in (k_scales, v_scales):
        if scales is not None and scales.shape != (num_blocks, block_size, num_kv_heads):
            raise ValueError(f"scales {tuple(scales.shape)} are not [num_blocks, block_size, num_kv_heads]")
    if k_scales is not None and v_scales is not None and k_scales.stride() != v_scales.stride():
        raise ValueError("k_scales and v_scales must have the same strides")
    return PagedShape(q.shape[1], num_kv_heads, head_dim, block_size, k_scales is not None)


def decode_tile(shape: PagedShape, dtype: torch.dtype) -> Tile:
    """Two K/V buffers at least, and two or more programs a processor. A function of the model, never of the batch."""
    wide = shape.head_dim_padded * dtype.itemsize
    if backend_name() == "hip":  # 64 KiB of shared memory
        return Tile(keys=64 if wide <= 128 else 32 if wide <= 512 else 16, num_warps=4, num_stages=2)
    if dtype == torch.float32:  # no tensor cores: registers run out first
        return Tile(keys=32 if wide <= 256 else 16, num_warps=4, num_stages=3)
    keys = 64 if wide <= 256 else 32 if wide <= 512 else 16
    if shape.is_quantized and shape.rows == 16:  # half the bytes, and registers to convert them: one more, smaller tile
        return Tile(keys=max(16, keys // 2), num_warps=4, num_stages=4)
    return Tile(keys=keys, num_warps=4, num_stages=3)
