"""A forward pass as one list of kernels that the threads run through by themselves. Knows kernels as addresses.

Started one by one from Python, a step's kernels lose their threads in between: each waits a moment, sleeps, and must be
woken. A program is recorded once for all steps of up to 8, 16, 32, … tokens, by running the pass with kernels noted
instead of started, and is one call from then on. What moves from step to step (numbers of rows, block tables,
positions, the plan of attention) reaches the record as a `Moving` number, and is put in place before each run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc
from torch.overrides import TorchFunctionMode

from offgen.backends.base import AttentionInputs, KVCache
from offgen.backends.cpu_pool import COUNTERS, Moving, Pool, Recorded, Rows
from offgen.backends.cpu_rows import KERNEL
from offgen.backends.cpu_simd import call_kernel, call_nothing, int64_at

SMALLEST = 8  # tokens that the smallest program has room for

Forward = Callable[..., torch.Tensor]
Resolve = Callable[[Hashable], int]


@cfunc(KERNEL, cache=True)
def program_kernel(memory):  # type: ignore[no-untyped-def]
    """Every thread runs all kernels, and waits for the others after each.

    Arguments: count, (kernel, its arguments) [count], barrier (0: this thread is alone).
    """
    args = carray(memory, 5)
    kernels, barrier = int64_at(args[3]), args[4]
    for i in range(args[2]):
        call_kernel(kernels[2 * i], kernels[2 * i + 1])
        if barrier != 0:
            call_nothing(barrier)


class Program:
    """Recorded kernels, laid out where `program_kernel` reads them, and what they leave behind."""

    def __init__(self, pool: Pool, recorded: Sequence[Recorded], output: torch.Tensor) -> None:
        self._pool = pool
        self._output = output
        sizes = [COUNTERS + len(args) for _, args in recorded]
        starts = 2 * len(recorded) + np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
        self._memory = np.zeros(2 * len(recorded) + sum(sizes), dtype=np.int64)
        self._count, self._address = len(recorded), self._memory.ctypes.data
        self._counters = (starts[:, None] + np.arange(COUNTERS)).ravel()
        moving: dict[Hashable, list[int]] = defaultdict(list)
        for i, (start, (kernel, args)) in enumerate(zip(starts.tolist(), recorded, strict=True)):
            self._memory[2 * i : 2 * i + 2] = kernel, self._address + 8 * start
            self._memory[start + COUNTERS : start + COUNTERS + len(args)] = args
            for place, value in enumerate(args, start + COUNTERS):
                if isinstance(value, Moving):
                    moving[value.what].append(place)
        self._moving = [(what, np.array(places)) for what, places in moving.items()]

    def run(self, resolve: Resolve) -> torch.Tensor:
        """One pass [capacity, …], of which the step's tokens are valid, until the next pass of any program."""
        memory = self._memory
        memory[self._counters] = 0
        for what, places in self._moving:
            memory[places] = resolve(what)
        self._pool.run(program_kernel.address, self._count, self._address, self._pool.barrier)
        return self._output


class Replayed:
    """`forward`, recorded at the first step of each size; as it is, if torch computes between its kernels."""

    def __init__(self, pool: Pool, resolve: Callable[[AttentionInputs, Hashable], int], forward: Forward) -> None:
        self._pool = pool
        self._resolve = resolve
        self._forward = forward
        self._programs: dict[int, Program] = {}  # by capacity
        self._kv_caches: list[KVCache] | None = None
        self.can_replay = True

    @property
    def num_programs(self) -> int:
        return len(self._programs)

    def __call__(self, token_ids: torch.Tensor, kv_caches: list[KVCache], inputs: AttentionInputs) -> torch.Tensor:
        count = token_ids.shape[0]
        if not self.can_replay or int(inputs.cu_seqlens_q[-1]) != count:  # padding is torch's to fill
            return self._forward(token_ids, kv_caches, inputs)
        if kv_caches is not self._kv_caches:
            self._programs.clear()
            self._kv_caches = kv_caches

        def resolve(what: Hashable) -> int:
            if isinstance(what, Rows):
                return what.per_token * count
            return token_ids.data_ptr() if what == "token_ids" else self._resolve(inputs, what)

        capacity = max(SMALLEST, 1 << (count - 1).bit_length())
        program = self._programs.get(capacity)
        if program is None:
            return self._record(capacity, token_ids, kv_caches, inputs, resolve)
        return program.run(resolve)[:count]

    def _record(
        self,
        capacity: int,
        token_ids: torch.Tensor,
        kv_caches: list[KVCache],
        inputs: AttentionInputs,
        resolve: Resolve,
    ) -> torch.Tensor:
        pool, count = self._pool, token_ids.shape[0]
        pool.start_recording(count, capacity)
        try:
            with _Watch(pool):
                output = self._forward(token_ids, kv_caches, inputs)
            recorded, whole = pool.recorded, pool.memory.whole(output)
            if recorded is None or whole is None or not _is_resolved(recorded, resolve):
                self.can_replay = False
                self._programs.clear()
                pool.flush()
                return output
        finally:
            pool.stop_recording()
        program = self._programs[capacity] = Program(pool, recorded, whole)
        return program.run(resolve)[:count]


def _is_resolved(recorded: Sequence[Recorded], resolve: Resolve) -> bool:
    """Whether what moves was the step's own, not something the pass made of it."""
    return all(value == resolve(value.what) for _, args in recorded for value in args if isinstance(value, Moving))


# what torch is asked for that computes nothing, if it need not copy
VIEWS = {"__getitem__", "contiguous", "float", "reshape", "split", "to", "unsqueeze", "view"}
QUESTIONS = {"__get__", "__len__", "data_ptr", "dim", "is_contiguous", "numel", "numpy", "size", "stride"}
HARMLESS = VIEWS | QUESTIONS


class _Watch(TorchFunctionMode):
    """Lets views pass; before anything else that torch does, the kernels noted so far run, and the record is void.

    (A TorchDispatchMode would see more, and brings imports of two seconds.)
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in HARMLESS:
            out = func(*args, **kwargs)
            if _storages(out) <= _storages(args):
                return out
        self._pool.flush()
        return func(*args, **kwargs)


def _storages(values: Any) -> set[int]:
    found = values if isinstance(values, (tuple, list)) else (values,)
    return {value.untyped_storage().data_ptr() for value in found if isinstance(value, torch.Tensor)}
