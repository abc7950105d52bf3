"""RMS norm, alone and with the residual added first.

    y = x / sqrt(mean(x^2) + eps) * w;      add: (norm(x + r), x + r), the sum rounded to x's dtype before it is squared

One program a row, the row in registers: read once, written once. Source: Zhang and Sennrich (2019).
Bytes: 2 * rows * E * itemsize, with the residual 4 * rows * E * itemsize.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.device import next_power_of_2


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE_PADDED)
    is_in = i < SIZE
    x = tl.load(x_ptr + row * x_stride + i, mask=is_in, other=0.0)
    if HAS_RESIDUAL:
        residual_at = residual_ptr + row * residual_stride + i
        residual = tl.load(residual_at, mask=is_in, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(residual_at, x, mask=is_in)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + i, mask=is_in, other=0.0).to(tl.float32)
    y = wide * inverse * weight
    tl.store(out_ptr + row * out_stride + i, y.to(out_ptr.dtype.element_ty), mask=is_in)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., E], weight [E] -> a new tensor of x's shape and dtype; statistics in fp32."""
    rows = _as_rows(x if x.dim() == 2 else x.contiguous(), weight)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _launch(rows, None, weight, out, eps)
    return out.view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), both [..., E] with contiguous rows, written over x and residual."""
    rows, residual_rows = _as_rows(x, weight), _as_rows(residual, weight)
    if x.shape != residual.shape or x.dtype != residual.dtype:
        raise ValueError(f"x {tuple(x.shape)} and residual {tuple(residual.shape)} differ")
    _launch(rows, residual_rows, weight, rows, eps)
    return x, residual


def _as_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    size = x.shape[-1]
    if weight.shape != (size,):
        raise ValueError(f"weight {tuple(weight.shape)} does not fit rows of {size}")
    return x if x.dim() == 2 and x.stride(1) == 1 else x.view(-1, size)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, eps: float
) -> None:
    num_rows, size = x.shape
    if num_rows == 0:
        return
    padded = next_power_of_2(size)
    _rms_norm_kernel[(num_rows,)](
        x, residual, weight, out, x.stride(0), residual.stride(0) if residual is not None else 0, out.stride(0), eps,
        SIZE=size, SIZE_PADDED=padded, HAS_RESIDUAL=residual is not None,
        num_warps=min(max(padded // 1024, 1), 16),
    )  # fmt: skip
