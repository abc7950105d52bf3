"""Weights as the GPU backend holds them: as they are, in FP8, or multiplied in one order for every batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from offgen_kernels.matmul_invariant import matmul_invariant
from offgen_kernels.quantize_rows_fp8 import quantize_rows_fp8
from offgen_kernels.reference_fp8 import fp8_linear

from offgen.backends.base import Linear


class PlainLinear:
    """cuBLAS."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias = weight.contiguous(), bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class InvariantLinear(PlainLinear):
    """A row's bits do not depend on the other rows."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return matmul_invariant(x, self._weight, self._bias)


class Fp8Linear:
    """e4m3 weights with a scale per output, inputs quantized row by row; sums in fp32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._scale = quantize_rows_fp8(weight.contiguous())
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_cuda:
            return fp8_linear(x, self._weight, self._scale, self._bias)
        rows = x.reshape(-1, self.in_features)
        values, scale = quantize_rows_fp8(rows)
        # a row of zeros has scale 0 and values 0: its sums are 0 either way
        out = torch._scaled_mm(
            values,
            self._weight.t(),
            scale_a=scale.unsqueeze(1),
            scale_b=self._scale.unsqueeze(0),
            out_dtype=torch.bfloat16,  # the only one that scales per row give
            use_fast_accum=True,
        )
        if self._bias is not None:
            out = out + self._bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


def can_be_fp8(weight: torch.Tensor) -> bool:
    """`torch._scaled_mm` takes multiples of 16 only."""
    return weight.shape[0] % 16 == 0 and weight.shape[1] % 16 == 0


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, *, quantization: str, is_batch_invariant: bool
) -> Linear:
    if quantization == "fp8" and can_be_fp8(weight):
        return Fp8Linear(weight, bias)
    return InvariantLinear(weight, bias) if is_batch_invariant else PlainLinear(weight, bias)
