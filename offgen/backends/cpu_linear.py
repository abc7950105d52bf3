"""Linear layers in float32 arithmetic, weights stored as float32, bfloat16 or float16. Knows packing and blocking.

A weight [N, K] is packed once into panels [ceil(N / TILE_COLUMNS)][K][TILE_COLUMNS], each read front to back. A work
item is one panel times a block of rows that fits the second-level cache. A worker takes its next item before it
computes the one at hand, to fetch the next panel meanwhile: else the first rows of each panel wait for memory. Any
number of rows runs without padding, and a row's bits are the same for all of them (cpu_tiles).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, types

from offgen.backends import cpu_pages
from offgen.backends.cpu_pool import Pool
from offgen.backends.cpu_simd import BFLOAT16, FLOAT16, FLOAT32, ITEMSIZE, fetch_add, float32_at
from offgen.backends.cpu_tiles import TILE_COLUMNS, TILE_ROWS, linear_rows, lines_ahead, take_edge, tile_height

KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
ROW_BLOCK_BYTES = 512 * 1024  # half of a common second-level cache; the rest is for the panel


@cache
def linear_kernel(kind: int) -> Any:
    """out = bias + x W^T. Arguments: M, N, K, x, packed, bias (padded), out, rows of a block."""
    item, most_ahead = ITEMSIZE[kind], 64 * lines_ahead(kind)

    @cfunc(types.void(types.CPointer(types.int64)), cache=True)
    def kernel(memory):  # type: ignore[no-untyped-def]
        args = carray(memory, 10)
        num_rows, num_columns, k = args[2], args[3], args[4]
        x, packed, bias, out, block = args[5], args[6], args[7], args[8], args[9]
        panels = (num_columns + TILE_COLUMNS - 1) // TILE_COLUMNS
        items = panels * ((num_rows + block - 1) // block)
        edge_values = np.empty((TILE_ROWS, TILE_COLUMNS), np.float32)
        edge = edge_values.ctypes.data
        following = fetch_add(args.ctypes.data, 1)
        while following < items:
            taken, following = following, fetch_add(args.ctypes.data, 1)
            panel, row = taken % panels, taken // panels * block
            size = k * TILE_COLUMNS * item
            b = packed + panel * size
            ahead, until = packed + following % panels * size, size if following < items else 0
            start = bias + panel * TILE_COLUMNS * 4
            width = min(TILE_COLUMNS, num_columns - panel * TILE_COLUMNS)
            last = min(num_rows, row + block)
            tiles = (last - row + TILE_ROWS - 1) // TILE_ROWS
            step = min(most_ahead, (TILE_COLUMNS * item + tiles - 1) // tiles)  # the next panel, spread over the tiles
            is_whole = width == TILE_COLUMNS
            while row < last:
                a = x + row * k * 4
                whole = out + (row * num_columns + panel * TILE_COLUMNS) * 4
                c, ldc = (whole, num_columns * 4) if is_whole else (edge, TILE_COLUMNS * 4)
                done = tile_height(last - row)
                linear_rows(done, kind, ahead if until > 0 else b, step, a, k * 4, b, start, c, ldc, k)
                ahead, until = ahead + k * step, until - k * step
                if not is_whole:
                    take_edge(edge_values, float32_at(whole), done, width, num_columns)
                row += done

    return kernel


class PackedLinear:
    """One weight, packed. Calls take any float dtype and return it; the arithmetic is float32."""

    def __init__(self, pool: Pool, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._pool = pool
        self._packed = pack_panels(weight, 1)
        self._bias = padded_columns(bias, self.out_features)
        self._kernel = linear_kernel(KINDS[weight.dtype]).address
        self._row_block = max(TILE_ROWS, ROW_BLOCK_BYTES // (4 * self.in_features) // TILE_ROWS * TILE_ROWS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32 or not x.is_contiguous():
            return self(x.float().contiguous()).to(x.dtype)
        num_rows = x.shape[0]
        out = self._pool.empty(num_rows, self.out_features)
        self._pool.run(
            self._kernel,
            self._pool.rows(num_rows),
            self.out_features,
            self.in_features,
            x.data_ptr(),
            self._packed.data_ptr(),
            self._bias.data_ptr(),
            out.data_ptr(),
            self._row_block,
        )
        return out


def pack_panels(weight: torch.Tensor, group: int) -> torch.Tensor:
    """[N, K] -> [ceil(N / TILE_COLUMNS), ceil(K / group), TILE_COLUMNS, group], padded with zeros."""
    num_columns, k = weight.shape
    panels, steps = -(-num_columns // TILE_COLUMNS), -(-k // group)
    packed = cpu_pages.empty(panels, steps, TILE_COLUMNS, group, dtype=weight.dtype)
    for panel, columns in zip(
        packed, torch.split(weight, TILE_COLUMNS), strict=True
    ):  # no second copy of the whole weight
        whole = columns.new_zeros(TILE_COLUMNS, steps * group)
        whole[: columns.shape[0], :k] = columns
        panel.copy_(whole.view(TILE_COLUMNS, steps, group).transpose(0, 1))
    return packed


def padded_columns(values: torch.Tensor | None, num_columns: int) -> torch.Tensor:
    """float32 values per output column, zeros beyond the last one (and for None)."""
    padded = torch.zeros(-(-num_columns // TILE_COLUMNS) * TILE_COLUMNS)
    if values is not None:
        padded[:num_columns] = values
    return padded
