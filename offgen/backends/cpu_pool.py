"""Runs kernels on the threads that torch already has, or notes them for later. Knows OpenMP; no kernel.

A second pool beside torch's would fight with it: both spin for a while after their work. So a kernel enters the very
OpenMP runtime that torch loaded, through GOMP_parallel, which GNU's, Intel's and LLVM's runtimes all offer on Linux.
Elsewhere Python threads do the same, with more time lost between kernels.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from offgen.backends.cpu_memory import StepMemory

KERNEL_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
COUNTERS = 2  # before a kernel's own arguments: of work taken, of workers entered
Recorded = tuple[int, tuple[int, ...]]  # a kernel and its arguments


@dataclass(frozen=True, slots=True)
class Rows:
    """The name of a number of rows: so many for each token."""

    per_token: int


class Moving(int):
    """An argument that another step has elsewhere, and the name under which it is looked up then."""

    what: Hashable

    @classmethod
    def of(cls, value: int, what: Hashable) -> Moving:
        moving = cls(value)
        moving.what = what
        return moving


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
        self.recorded: list[Recorded] | None = None  # what was noted since start_recording
        self.memory = StepMemory()
        self._tokens = 1  # of the step that is recorded
        parallel, self.barrier = _openmp() if threads > 1 else (_alone, 0)
        self.can_record = parallel is not None
        self._parallel: Callable[..., Any] = parallel or _python_parallel(threads)

    def run(self, kernel: int, *args: int, is_small: bool = False) -> None:
        """Call kernel(args) on every thread and wait; on this thread alone if is_small. Releases the GIL."""
        if self.recorded is not None:
            self.recorded.append((kernel, args))
        elif is_small:
            self.run_alone(kernel, *args)
        else:
            memory = (ctypes.c_int64 * (COUNTERS + len(args)))(0, 0, *args)
            self._parallel(kernel, ctypes.addressof(memory), self.threads, 0)

    def run_alone(self, kernel: int, *args: int) -> None:
        """Call kernel(args) on this thread, at once even while recording: it must not read what is only noted."""
        memory = (ctypes.c_int64 * (COUNTERS + len(args)))(0, 0, *args)
        _alone(kernel, ctypes.addressof(memory), 1, 0)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory for a result. While recording, it is the same in every run of what is recorded."""
        return self.memory.empty(*shape, dtype=dtype)

    def rows(self, count: int) -> int:
        """The number of rows a kernel works on: while recording, so many for each token of the step that runs."""
        if self.recorded is None:
            return count
        if count % self._tokens:
            self.flush()
        return Moving.of(count, Rows(count // self._tokens))

    def start_recording(self, tokens: int, capacity: int) -> None:
        """Note kernels instead of starting them, in a step of so many tokens, for all steps of up to `capacity`."""
        self.recorded, self._tokens = [], tokens
        self.memory.start(tokens, capacity)

    def flush(self) -> None:
        """Run what was noted, and go on without a record."""
        noted, self.recorded = self.recorded, None
        for kernel, args in noted or ():
            self.run(kernel, *args)

    def stop_recording(self) -> None:
        self.recorded = None
        self.memory.stop()


def _alone(kernel: int, address: int, threads: int, flags: int) -> None:
    _callable(kernel)(address)


@lru_cache(maxsize=256)
def _callable(kernel: int) -> Any:
    return KERNEL_TYPE(kernel)


def _openmp() -> tuple[Callable[..., Any] | None, int]:
    """(GOMP_parallel, address of GOMP_barrier) of the runtime that torch loaded."""
    libraries: list[str | None] = [None]  # what the process loaded globally, torch's runtime among it
    libraries += [str(path) for path in Path(torch.__file__).parent.glob("lib/libtorch_cpu.so")]
    for name in libraries:
        try:
            library = ctypes.CDLL(name)
            parallel, barrier = library.GOMP_parallel, library.GOMP_barrier
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel, ctypes.cast(barrier, ctypes.c_void_p).value or 0
    return None, 0


def _python_parallel(threads: int) -> Callable[..., Any]:
    executor = ThreadPoolExecutor(threads - 1, thread_name_prefix="offgen-cpu")

    def parallel(kernel: int, address: int, threads: int, flags: int) -> None:
        call = _callable(kernel)
        others = [executor.submit(call, address) for _ in range(threads - 1)]
        call(address)
        for other in others:
            other.result()

    return parallel
