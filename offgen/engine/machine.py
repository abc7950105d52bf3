"""What this machine offers an engine: processors, memory, GPUs, and what runs on them. Allocates nothing."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from offgen.backends.host import available_cpus, available_memory_bytes


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
