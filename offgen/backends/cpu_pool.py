"""Runs kernels on the threads that torch already has. Knows OpenMP; no kernel.

A second pool beside torch's would fight with it: both spin for a while after their work. So a kernel enters the very
OpenMP runtime that torch loaded, through GOMP_parallel, which GNU's, Intel's and LLVM's runtimes all offer on Linux.
Elsewhere Python threads do the same, with more time lost between kernels.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

KERNEL_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@lru_cache(maxsize=1024)
def float_bits(value: float) -> int:
    """A float as the int64 that carries it to a kernel (cpu_simd.float_of reads it)."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


class Pool:
    """A number of threads, and the ways to start a kernel on them.

    A kernel is the address of a C function that takes one int64 array: a counter of work taken, a counter of workers
    entered, then its own arguments. Every worker calls it; they share the work by the counters, so which thread does
    what is open, and a kernel's results must not depend on it.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._parallel: Callable[..., Any] = (_gomp_parallel() or _python_parallel(threads)) if threads > 1 else _alone

    def run(self, kernel: int, *args: int, is_small: bool = False) -> None:
        """Call kernel(args) on every thread and wait; on this thread alone if is_small. Releases the GIL."""
        memory = (ctypes.c_int64 * (2 + len(args)))(0, 0, *args)
        address = ctypes.addressof(memory)
        if is_small:
            _alone(kernel, address, 1, 0)
        else:
            self._parallel(kernel, address, self.threads, 0)


def _alone(kernel: int, address: int, threads: int, flags: int) -> None:
    _callable(kernel)(address)


@lru_cache(maxsize=256)
def _callable(kernel: int) -> Any:
    return KERNEL_TYPE(kernel)


def _gomp_parallel() -> Callable[..., Any] | None:
    libraries: list[str | None] = [None]  # what the process loaded globally, torch's runtime among it
    libraries += [str(path) for path in Path(torch.__file__).parent.glob("lib/libtorch_cpu.so")]
    for name in libraries:
        try:
            function = ctypes.CDLL(name).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
        return function
    return None


def _python_parallel(threads: int) -> Callable[..., Any]:
    executor = ThreadPoolExecutor(threads - 1, thread_name_prefix="offgen-cpu")

    def parallel(kernel: int, address: int, threads: int, flags: int) -> None:
        call = _callable(kernel)
        others = [executor.submit(call, address) for _ in range(threads - 1)]
        call(address)
        for other in others:
            other.result()

    return parallel
