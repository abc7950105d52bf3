"""Memory in huge pages, where Linux gives them. Knows pages; knows nothing of what is kept there.

Weights are read from end to end in every step. In pages of 4 KiB each one costs a walk through the page tables, twice
over in a virtual machine, and stops what fetches ahead. (Keys and values stay in small pages: a job writes most of
their memory once, and huge pages cost more to clear than they bring.)
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import numpy as np
import torch

HUGE = 2 << 20
ARENA_BYTES = 16 << 20  # what small tensors share
ALIGNMENT = 64  # a cache line

_arena: tuple[torch.Tensor, int] | None = None  # the one that is being filled, and how far


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """As torch.empty on the CPU. Nothing is committed until it is written; small tensors lie side by side.

    Raises torch.OutOfMemoryError if the system has no room.
    """
    global _arena
    count = math.prod(shape) * dtype.itemsize
    if not hasattr(mmap, "MADV_HUGEPAGE") or count == 0:
        return torch.empty(*shape, dtype=dtype)
    if count >= ARENA_BYTES:
        return _mapped(count)[:count].view(dtype).view(shape)
    memory, used = _arena or (_mapped(ARENA_BYTES), 0)
    if used + count > ARENA_BYTES:
        memory, used = _mapped(ARENA_BYTES), 0
    _arena = memory, used + -(-count // ALIGNMENT) * ALIGNMENT
    return memory[used : used + count].view(dtype).view(shape)


def _mapped(num_bytes: int) -> torch.Tensor:
    """Bytes of their own pages (a shared mapping would get small ones). Given back with the last tensor over them."""
    size = -(-num_bytes // HUGE) * HUGE
    try:
        mapped = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise torch.OutOfMemoryError(f"the system gives no {size:,} bytes: {error}") from error
    with suppress(OSError):  # a kernel without huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    values = np.frombuffer(mapped, dtype=np.uint8)
    start = -values.ctypes.data % HUGE
    return torch.from_numpy(values[start : start + size])
