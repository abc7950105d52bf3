"""Where a recorded pass keeps its activations. Knows ranges of bytes and who still holds them; knows no op.

A recorded kernel runs later, and again in every step of the same size, so what it writes must stay in one place.
Ranges are given out as tensors and taken back when the last tensor over them is gone; recorded kernels run in order, so
a range may then serve the next one.
"""

from __future__ import annotations

import math
import weakref
from bisect import insort
from typing import Any

import numpy as np
import torch

CHUNK_BYTES = 16 << 20
ALIGNMENT = 64  # a cache line
NUMPY_TYPES = {torch.float32: np.float32, torch.int16: np.int16, torch.uint8: np.uint8}


class StepMemory:
    """Outside a recording, plain torch memory. All recordings share the chunks: they hold the last pass that ran."""

    def __init__(self) -> None:
        self._chunks: list[np.ndarray[Any, Any]] = []
        self._ranges: FreeRanges | None = None
        self._tokens = self._capacity = 1

    def start(self, tokens: int, capacity: int) -> None:
        """Begin a recording of a step of so many tokens, which is to serve steps of up to `capacity`."""
        self._tokens, self._capacity = tokens, capacity
        self._ranges = FreeRanges([chunk.size for chunk in self._chunks])

    def stop(self) -> None:
        self._ranges = None

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """While recording, a tensor of one or several rows a token has room for those of the capacity behind it."""
        if self._ranges is None:
            return torch.empty(*shape, dtype=dtype)
        count = math.prod(shape) * dtype.itemsize
        room = count // self._tokens * self._capacity if shape[0] % self._tokens == 0 else count
        ranges, size = self._ranges, -(-room // ALIGNMENT) * ALIGNMENT
        place = ranges.take(size)
        if place is None:
            self._chunks.append(_aligned(max(size, CHUNK_BYTES)))
            ranges.add(self._chunks[-1].size)
            place = ranges.take(size)
            assert place is not None
        chunk, begin = place
        held = self._chunks[chunk][begin : begin + count].view(NUMPY_TYPES[dtype]).reshape(shape)
        weakref.finalize(held, ranges.give_back, chunk, begin, begin + size).atexit = False
        return torch.from_numpy(held)  # every view of it holds `held`

    def whole(self, rows: torch.Tensor) -> torch.Tensor | None:
        """rows [tokens, …], as recorded, with all the rows of the capacity; None if they do not lie here."""
        if rows.shape[0] != self._tokens or not rows.is_contiguous():
            return None
        for chunk in self._chunks:
            begin = rows.data_ptr() - chunk.ctypes.data
            if 0 <= begin < chunk.size:
                end = begin + rows.nbytes // self._tokens * self._capacity
                values = chunk[begin:end].view(NUMPY_TYPES[rows.dtype])
                return torch.from_numpy(values.reshape(self._capacity, *rows.shape[1:]))
        return None


def _aligned(num_bytes: int) -> np.ndarray[Any, Any]:
    memory = np.empty(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + num_bytes]


class FreeRanges:
    """Which bytes of the chunks nobody holds, as sorted (begin, end) of each chunk."""

    def __init__(self, sizes: list[int]) -> None:
        self._free = [[(0, size)] for size in sizes]

    def add(self, size: int) -> None:
        self._free.append([(0, size)])

    def take(self, size: int) -> tuple[int, int] | None:
        """(chunk, first byte) of the first range that is long enough."""
        for chunk, ranges in enumerate(self._free):
            for i, (begin, end) in enumerate(ranges):
                if end - begin >= size:
                    ranges[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                    return chunk, begin
        return None

    def give_back(self, chunk: int, begin: int, end: int) -> None:
        ranges = self._free[chunk]
        insort(ranges, (begin, end))
        i = max(0, ranges.index((begin, end)) - 1)
        while i + 1 < len(ranges) and ranges[i][0] <= end:
            if ranges[i][1] == ranges[i + 1][0]:
                ranges[i : i + 2] = [(ranges[i][0], ranges[i + 1][1])]
            else:
                i += 1
