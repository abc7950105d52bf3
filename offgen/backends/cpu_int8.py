"""Linear layers in 8-bit integers: weights with a scale per output channel, activations with a scale per token.

x is quantized, multiplied and summed in int32, and scaled back in the same pass. VNNI multiplies fours of uint8 and
int8: there x is stored around 128, which a correction per channel takes off again. Other processors multiply pairs of
int16. Integer sums are exact, so both give the same bits, and a row's depend on that row alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types
from offgen_kernels.reference import quantize_rows

from offgen.backends.cpu_int8_tiles import int8_rows
from offgen.backends.cpu_linear import ROW_BLOCK_BYTES, pack_panels, padded_columns
from offgen.backends.cpu_pool import Pool
from offgen.backends.cpu_simd import (
    FEATURES,
    LANES,
    bits_of_float32,
    fetch_add,
    float32_at,
    float32_of_bits,
    int16_at,
    uint8_at,
)
from offgen.backends.cpu_tiles import TILE_COLUMNS, TILE_ROWS, take_edge, tile_height

HAS_VNNI = ("avx512vnni" if LANES == 16 else "avxvnni") in FEATURES
FOURS, PAIRS = 4, 2  # neighbours in k that one instruction multiplies and sums
GROUP = FOURS if HAS_VNNI else PAIRS
STORED = {FOURS: torch.uint8, PAIRS: torch.int16}  # a quantized activation
ZERO = {FOURS: 128, PAIRS: 0}  # what stands for zero in it
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
def quantize_row(x, scale, values, zero, count, padded):  # type: ignore[no-untyped-def]
    """values = round(x / scale) + zero. A NaN row's values are anything: its scale makes it NaN again."""
    divisor = scale if scale > types.float32(0.0) else types.float32(1.0)
    for i in range(count):
        values[i] = types.int32(np.rint(x[i] / divisor)) + types.int32(zero)
    for i in range(count, padded):
        values[i] = zero


@cfunc(types.void(types.CPointer(types.int64)), cache=True)
def quantize_kernel(memory):  # type: ignore[no-untyped-def]
    """Arguments: M, K, K padded, x, values [M, K padded], group, scales [M]."""
    args = carray(memory, 9)
    num_rows, k, padded = args[2], args[3], args[4]
    scales = float32_at(args[8])
    while True:
        row = fetch_add(args.ctypes.data, 1)
        if row >= num_rows:
            break
        x = float32_at(args[5] + row * k * 4)
        scale = absmax_scale(x, k)
        scales[row] = scale
        if args[7] == FOURS:
            quantize_row(x, scale, uint8_at(args[6] + row * padded), 128, k, padded)
        else:
            quantize_row(x, scale, int16_at(args[6] + row * padded * 2), 0, k, padded)


@cache
def int8_kernel(group: int) -> Any:
    """Arguments: M, N, K / group, x quantized, x scales, packed, what each panel's columns are told, out, block."""

    @cfunc(types.void(types.CPointer(types.int64)), cache=True)
    def kernel(memory):  # type: ignore[no-untyped-def]
        args = carray(memory, 11)
        num_rows, num_columns, steps = args[2], args[3], args[4]
        x, x_scales, packed, told, out, block = args[5], args[6], args[7], args[8], args[9], args[10]
        panels = (num_columns + TILE_COLUMNS - 1) // TILE_COLUMNS
        items = panels * ((num_rows + block - 1) // block)
        edge_values = np.empty((TILE_ROWS, TILE_COLUMNS), np.float32)
        edge = edge_values.ctypes.data
        size = TILE_COLUMNS * steps * group
        following = fetch_add(args.ctypes.data, 1)
        while following < items:  # as in cpu_linear: the next panel is fetched while this one is computed
            taken, following = following, fetch_add(args.ctypes.data, 1)
            panel, row = taken % panels, taken // panels * block
            b, columns = packed + panel * size, told + panel * 3 * TILE_COLUMNS * 4
            ahead, until = packed + following % panels * size, size if following < items else 0
            width, last = min(TILE_COLUMNS, num_columns - panel * TILE_COLUMNS), min(num_rows, row + block)
            tiles = (last - row + TILE_ROWS - 1) // TILE_ROWS
            step = min(64, (TILE_COLUMNS * group + tiles - 1) // tiles)
            is_whole = width == TILE_COLUMNS
            while row < last:
                done = tile_height(last - row)
                whole = out + (row * num_columns + panel * TILE_COLUMNS) * 4
                c, ldc = (whole, num_columns * 4) if is_whole else (edge, TILE_COLUMNS * 4)
                int8_rows(
                    done, group, ahead if until > 0 else b, step, x + row * steps * 4, steps * 4, b, x_scales + row * 4,
                    columns, c, ldc, steps,
                )  # fmt: skip
                ahead, until = ahead + steps * step, until - steps * step
                if not is_whole:
                    take_edge(edge_values, float32_at(whole), done, width, num_columns)
                row += done

    return kernel


class Int8Linear:
    """One weight, quantized per output channel and packed. `group` is the processor's; PAIRS run on every one."""

    def __init__(
        self, pool: Pool, weight: torch.Tensor, bias: torch.Tensor | None = None, *, group: int = GROUP
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self._pool = pool
        values, scales = quantize_rows(weight)
        self._packed = pack_panels(values, group)
        corrections = torch.zeros(self._packed.shape[0] * TILE_COLUMNS, dtype=torch.int32)
        corrections[: self.out_features] = values.sum(1, dtype=torch.int32) * ZERO[group]
        by_column = [padded_columns(scales, self.out_features), padded_columns(bias, self.out_features)]
        by_column.insert(1, corrections.view(torch.float32))
        self._columns = torch.stack([told.view(-1, TILE_COLUMNS) for told in by_column], dim=1)
        self._steps = self._packed.shape[1]
        self._group = group
        row_bytes = self.in_features * STORED[group].itemsize
        self._row_block = max(TILE_ROWS, ROW_BLOCK_BYTES // row_bytes // TILE_ROWS * TILE_ROWS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32 or not x.is_contiguous():
            return self(x.float().contiguous()).to(x.dtype)
        values, scales = quantize(self._pool, x, self._steps * self._group, self._group)
        out = self._pool.empty(x.shape[0], self.out_features)
        self._pool.run(
            int8_kernel(self._group).address,
            self._pool.rows(x.shape[0]),
            self.out_features,
            self._steps,
            values.data_ptr(),
            scales.data_ptr(),
            self._packed.data_ptr(),
            self._columns.data_ptr(),
            out.data_ptr(),
            self._row_block,
        )
        return out


def quantize(pool: Pool, x: torch.Tensor, padded: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] -> integers [M, padded], float32 scales [M]."""
    num_rows, k = x.shape
    values, scales = pool.empty(num_rows, padded, dtype=STORED[group]), pool.empty(num_rows)
    where = (x.data_ptr(), values.data_ptr(), group, scales.data_ptr())
    pool.run(quantize_kernel.address, pool.rows(num_rows), k, padded, *where, is_small=x.numel() < SMALL)
    return values, scales
