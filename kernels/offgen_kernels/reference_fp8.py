"""The specification of the FP8 ops, in plain torch: e4m3 values with a float32 scale per row of the last dimension."""

from __future__ import annotations

import torch

LARGEST = 448.0  # of float8_e4m3fn


def quantize_rows_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] -> float8_e4m3fn values and a float32 scale per row (absmax / 448): x is about values * scale."""
    wide = x.to(torch.float32)
    scale = wide.abs().amax(dim=-1) / LARGEST
    values = wide / torch.where(scale > 0, scale, torch.ones_like(scale)).unsqueeze(-1)
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def dequantize_rows(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32) * scale.unsqueeze(-1)


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, K] quantized per row, times weight float8_e4m3fn [N, K] with weight_scale [N] -> [T, N] in x's dtype."""
    values, scale = quantize_rows_fp8(x)
    out = (values.to(torch.float32) @ weight.to(torch.float32).T) * scale.unsqueeze(-1) * weight_scale
    return (out if bias is None else out + bias).to(x.dtype)
