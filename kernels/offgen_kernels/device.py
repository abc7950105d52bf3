"""Which machine the kernels are launched on, so that a launcher can choose its tile. Knows no op."""

from __future__ import annotations

from functools import lru_cache

import triton


@lru_cache(maxsize=1)
def backend_name() -> str:
    """`cuda`, `hip`, or `interpreter` (TRITON_INTERPRET=1: kernels run as Python on CPU tensors)."""
    if triton.knobs.runtime.interpret:
        return "interpreter"
    return str(triton.runtime.driver.active.get_current_target().backend)


@lru_cache(maxsize=1)
def cuda_capability() -> int:
    """80, 90, 100, …; 0 where it is not an NVIDIA GPU."""
    if backend_name() != "cuda":
        return 0
    return int(triton.runtime.driver.active.get_current_target().arch)


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
