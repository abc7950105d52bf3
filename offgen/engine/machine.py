"""What this machine offers an engine: processors, memory, GPUs, and what runs on them. Allocates nothing."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offgen.backends.host import available_cpus, available_memory_bytes
from offgen.errors import UsageError


def describe_machine() -> dict[str, Any]:
    """JSON-able; for `offgen info`."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {
            "name": _cpu_name(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": available_cpus(),
            "memory_available_bytes": available_memory_bytes(),
            "mkl": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
        },
        "gpus": [_gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else [],
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
    }


def _cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def require_device(name: str) -> None:
    """Raise UsageError for a device that is not here: known before anything is written or loaded."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU", hint="--device cpu")


@dataclass(frozen=True, slots=True)
class Speed:
    """What a device was measured to do, in a blink: good for a forecast, not for a benchmark."""

    flops: float  # of a large matrix product
    row_flops: float  # of one with few rows, as decoding has
    bytes_per_s: float  # reading memory
    memory_bytes: int  # that may still be allocated


def measure_speed(device: str, dtype: str) -> Speed:
    """Run a few matrix products and a sum on the device, in about a second."""
    where = torch.device("cuda" if device == "cuda" else "cpu")
    kind = getattr(torch, dtype)
    size = 4096 if where.type == "cuda" else 1024
    weight = torch.ones(size, size, dtype=kind, device=where)
    many, few = (torch.ones(rows, size, dtype=kind, device=where) for rows in (size, 32))
    block = torch.ones((256 if where.type == "cuda" else 32) << 20, dtype=torch.float32, device=where)
    memory = torch.cuda.mem_get_info()[0] if where.type == "cuda" else available_memory_bytes()
    return Speed(
        flops=2 * size**3 / _seconds(lambda: many @ weight, where),
        row_flops=2 * 32 * size**2 / _seconds(lambda: few @ weight, where),
        bytes_per_s=block.nbytes / _seconds(lambda: block.sum(), where),
        memory_bytes=int(memory),
    )


def _seconds(call: Callable[[], object], where: torch.device) -> float:
    """The best of a few: others may be at work."""
    best = float("inf")
    for _ in range(4):
        started_s = time.perf_counter()
        call()
        if where.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started_s)
    return best
