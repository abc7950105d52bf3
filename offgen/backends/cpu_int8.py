"""Linear layers in 8-bit integers: weights with a scale per output channel, activations with a scale per token.

x is quantized to uint8 around 128 (what VNNI multiplies with int8), summed in int32, and scaled back in the same pass;
the 128 is taken off again by a correction per channel. Integer sums are exact, so every path gives the same bits, and a
row's depend on that row alone. Machines without VNNI multiply with torch._int_mm.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types
from offgen_kernels.reference import quantize_rows

from offgen.backends.cpu_linear import ROW_BLOCK_BYTES, pack_panels, padded_columns
from offgen.backends.cpu_pool import Pool
from offgen.backends.cpu_simd import (
    FEATURES,
    LANES,
    bits_of_float32,
    fetch_add,
    float32_at,
    float32_of_bits,
    int32_at,
    uint8_at,
)
from offgen.backends.cpu_tiles import TILE_COLUMNS, TILE_ROWS, int8_tile

HAS_VNNI = ("avx512vnni" if LANES == 16 else "avxvnni") in FEATURES
INFINITY_BITS = 0x7F800000
SMALL = 32768  # values that one thread quantizes before another would have woken up


@njit(error_model="numpy")
def absmax_scale(x, count):  # type: ignore[no-untyped-def]
    """absmax / 127; NaN if any value is not finite. Compares bits as integers: exact, and LLVM vectorises it."""
    largest = types.int32(0)
    for i in range(count):
        largest = max(largest, bits_of_float32(x[i]) & types.int32(0x7FFFFFFF))
    if largest >= INFINITY_BITS:
        return types.float32(np.nan)
    return float32_of_bits(largest) / types.float32(127.0)


@njit(error_model="numpy")
def quantize_row(x, scale, values, count):  # type: ignore[no-untyped-def]
    """values = round(x / scale) + 128. A NaN row's values are anything: its scale makes it NaN again."""
    divisor = scale if scale > types.float32(0.0) else types.float32(1.0)
    for i in range(count):
        values[i] = types.uint8(types.int32(np.rint(x[i] / divisor)) + types.int32(128))


@cfunc(types.void(types.CPointer(types.int64)), cache=True)
def quantize_kernel(memory):  # type: ignore[no-untyped-def]
    """Arguments: M, K, K padded, x, values uint8 [M, K padded], scales [M]."""
    args = carray(memory, 8)
    num_rows, k, padded = args[2], args[3], args[4]
    scales = float32_at(args[7])
    while True:
        row = fetch_add(args.ctypes.data, 1)
        if row >= num_rows:
            break
        x, values = float32_at(args[5] + row * k * 4), uint8_at(args[6] + row * padded)
        scale = absmax_scale(x, k)
        scales[row] = scale
        quantize_row(x, scale, values, k)
        for i in range(k, padded):
            values[i] = types.uint8(128)


@cache
def int8_kernel() -> Any:
    """Arguments: M, N, K / 4, x uint8, x scales, packed, weight scales, corrections, bias, out, rows of a block."""

    @cfunc(types.void(types.CPointer(types.int64)), cache=True)
    def kernel(memory):  # type: ignore[no-untyped-def]
        args = carray(memory, 13)
        num_rows, num_columns, k4 = args[2], args[3], args[4]
        x_scales, block = float32_at(args[6]), args[12]
        panels = (num_columns + TILE_COLUMNS - 1) // TILE_COLUMNS
        items = panels * ((num_rows + block - 1) // block)
        sums = np.empty((TILE_ROWS, TILE_COLUMNS), np.int32)
        to = sums.ctypes.data
        while True:
            taken = fetch_add(args.ctypes.data, 1)
            if taken >= items:
                break
            panel, row = taken % panels, taken // panels * block
            first = panel * TILE_COLUMNS
            b = args[7] + first * k4 * 4
            scales, corrections = float32_at(args[8] + first * 4), int32_at(args[9] + first * 4)
            bias = float32_at(args[10] + first * 4)
            width, last = min(TILE_COLUMNS, num_columns - first), min(num_rows, row + block)
            while row < last:
                a, left = args[5] + row * k4 * 4, last - row
                done = 1
                if left >= TILE_ROWS:
                    done = TILE_ROWS
                    int8_tile(TILE_ROWS, a, k4 * 4, b, to, TILE_COLUMNS * 4, k4)
                elif left >= 4:
                    done = 4
                    int8_tile(4, a, k4 * 4, b, to, TILE_COLUMNS * 4, k4)
                elif left >= 2:
                    done = 2
                    int8_tile(2, a, k4 * 4, b, to, TILE_COLUMNS * 4, k4)
                else:
                    int8_tile(1, a, k4 * 4, b, to, TILE_COLUMNS * 4, k4)
                for m in range(done):
                    out = float32_at(args[11] + ((row + m) * num_columns + first) * 4)
                    for n in range(width):
                        exact = types.float32(sums[m, n] - corrections[n])
                        out[n] = exact * x_scales[row + m] * scales[n] + bias[n]
                row += done

    return kernel


class Int8Linear:
    """One weight, quantized per output channel and packed for VNNI."""

    def __init__(self, pool: Pool, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._pool = pool
        values, scales = quantize_rows(weight)
        self._packed = pack_panels(values, 4)
        self._scales = padded_columns(scales, self.out_features)
        self._corrections = torch.zeros(self._scales.shape, dtype=torch.int32)
        self._corrections[: self.out_features] = values.sum(1, dtype=torch.int32) * 128
        self._bias = padded_columns(bias, self.out_features)
        self._steps = self._packed.shape[1]
        self._row_block = max(TILE_ROWS, ROW_BLOCK_BYTES // self.in_features // TILE_ROWS * TILE_ROWS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32 or not x.is_contiguous():
            return self(x.float().contiguous()).to(x.dtype)
        values, scales = quantize(self._pool, x, self._steps * 4)
        out = torch.empty(x.shape[0], self.out_features)
        self._pool.run(
            int8_kernel().address,
            x.shape[0],
            self.out_features,
            self._steps,
            values.data_ptr(),
            scales.data_ptr(),
            self._packed.data_ptr(),
            self._scales.data_ptr(),
            self._corrections.data_ptr(),
            self._bias.data_ptr(),
            out.data_ptr(),
            self._row_block,
        )
        return out


class Int8TorchLinear:
    """The same through torch._int_mm, for machines without VNNI."""

    def __init__(self, pool: Pool, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._pool = pool
        values, self._scales = quantize_rows(weight)
        self._columns = values.T.contiguous()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values, scales = quantize(self._pool, x.float().contiguous(), self.in_features)
        signed = (values.view(torch.int8) ^ -128).contiguous()  # 128 + v as uint8 is v with its top bit flipped
        out = torch._int_mm(signed, self._columns).float() * scales.unsqueeze(-1) * self._scales
        return (out if self._bias is None else out + self._bias).to(x.dtype)


def quantize(pool: Pool, x: torch.Tensor, padded: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] -> uint8 [M, padded] around 128, float32 scales [M]."""
    num_rows, k = x.shape
    values, scales = torch.empty(num_rows, padded, dtype=torch.uint8), torch.empty(num_rows)
    where = (x.data_ptr(), values.data_ptr(), scales.data_ptr())
    pool.run(quantize_kernel.address, num_rows, k, padded, *where, is_small=x.numel() < SMALL)
    return values, scales


def int8_linear(pool: Pool, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    return (Int8Linear if HAS_VNNI else Int8TorchLinear)(pool, weight, bias)
