"""Compiles what a launcher would launch, for a GPU that is not there, and says what the compiler made of it.

A launcher runs unchanged on CPU tensors under a stand-in driver that names the target; its launches are compiled with
the very divisibility attributes that its strides and pointers have, recorded, and not run. Needs no GPU; must not run
under TRITON_INTERPRET.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from offgen_kernels.device import backend_name, cuda_capability
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMIT = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel as compiled for one target."""

    name: str
    target: str
    shared_bytes: int
    num_warps: int
    registers: int
    spill_bytes: int
    async_loads: dict[int, int]  # bytes of a global-to-shared copy -> how many instructions
    buffers: tuple[int, ...]  # first extent of each multi-buffered shared allocation
    tensor_core_ops: tuple[str, ...]

    @property
    def is_within_shared(self) -> bool:
        return self.shared_bytes <= SHARED_LIMIT[self.target]


class _NamedTarget:
    """What Triton asks of a driver when it only compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return hash(str(self._target))

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        raise RuntimeError("compiled only")


@contextmanager
def compiling_for(target: str) -> Iterator[list[Compiled]]:
    """Inside, launches are compiled for `target` and appended to the list instead of run."""
    compiled: list[Compiled] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append(inspect(kernel, target))

    _forget_device()
    triton.runtime.driver.set_active(_NamedTarget(TARGETS[target]))
    JITFunction.run = compile_only
    try:
        yield compiled
    finally:
        JITFunction.run = run
        _forget_device()


def _forget_device() -> None:
    backend_name.cache_clear()
    cuda_capability.cache_clear()


def compile_launch(launch: Callable[[], Any], target: str) -> list[Compiled]:
    with compiling_for(target) as compiled:
        launch()
    return compiled


def inspect(kernel: Any, target: str) -> Compiled:
    kernel = kernel.result() if hasattr(kernel, "result") else kernel
    asm, meta = kernel.asm, kernel.metadata
    ttgir = asm["ttgir"]
    buffers = tuple(int(n) for n in re.findall(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x", ttgir))
    if target.startswith("sm_"):
        registers, spills = _cubin_usage(asm["cubin"])
        ptx = asm["ptx"]
        sizes = [
            int(n, 0) for n in re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*?, ((?:0x)?\d+)(?:, [^;]*)?;", ptx)
        ]
        ops = sorted(set(re.findall(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)", ptx)))
    else:
        text = asm["amdgcn"]
        registers = int(re.search(r"\.vgpr_count:\s+(\d+)", text).group(1))  # type: ignore[union-attr]
        spills = 4 * int(re.search(r"\.vgpr_spill_count:\s+(\d+)", text).group(1))  # type: ignore[union-attr]
        sizes, ops = [], sorted(set(re.findall(r"\b(v_mfma)", text)))
    counts = {n: sizes.count(n) for n in sorted(set(sizes))}
    return Compiled(meta.name, target, meta.shared, meta.num_warps, registers, spills, counts, buffers, tuple(ops))


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack or local memory, as cuobjdump reads them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        out = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True)
    text = out.stdout + out.stderr
    registers = max(int(n) for n in re.findall(r"REG:(\d+)", text))
    return registers, sum(int(n) for n in re.findall(r"(?:STACK|LOCAL):(\d+)", text))
