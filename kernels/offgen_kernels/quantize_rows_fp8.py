"""Rows to FP8: largest magnitude, scale and cast in one launch, for `torch._scaled_mm` with a scale per row.

    s = max|x| / 448;  values = x / s

Bytes: rows * K * (itemsize + 1); rows longer than 16,384 are read twice. Source: Micikevicius et al. (2022).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.device import next_power_of_2
from offgen_kernels.fp8 import to_e4m3

_MAX_BLOCK = 16384


@triton.jit
def _quantize_rows_kernel(x_ptr, out_ptr, scale_ptr, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    if SIZE <= BLOCK:
        x = tl.load(x_ptr + row * x_stride + i, mask=i < SIZE, other=0.0).to(tl.float32)
        scale = tl.max(tl.abs(x), 0) / 448.0
        _store_scaled(x, scale, out_ptr + row * SIZE + i, i < SIZE)
    else:
        largest = tl.zeros([BLOCK], tl.float32)
        for start in tl.range(0, SIZE, BLOCK):
            x = tl.load(x_ptr + row * x_stride + start + i, mask=start + i < SIZE, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(x))
        scale = tl.max(largest, 0) / 448.0
        for start in tl.range(0, SIZE, BLOCK):
            x = tl.load(x_ptr + row * x_stride + start + i, mask=start + i < SIZE, other=0.0).to(tl.float32)
            _store_scaled(x, scale, out_ptr + row * SIZE + start + i, start + i < SIZE)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _store_scaled(x, scale, at, mask):
    x = x / tl.where(scale > 0, scale, 1.0)
    x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    tl.store(at, to_e4m3(x), mask=mask)


def quantize_rows_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] -> (float8_e4m3fn values [T, K], float32 scales [T]); a row of zeros has scale 0."""
    if x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(f"x {tuple(x.shape)} is not [T, K] with contiguous rows")
    num_rows, size = x.shape
    values = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        block = min(next_power_of_2(size), _MAX_BLOCK)
        _quantize_rows_kernel[(num_rows,)](
            x, values, scale, x.stride(0), SIZE=size, BLOCK=block, num_warps=min(max(block // 1024, 1), 16)
        )
    return values, scale
