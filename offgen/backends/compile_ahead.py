"""Compiles the CPU's kernels in processes of their own, while this one still reads the model's files.

The first start on a machine compiles for many seconds, and one process can compile only one kernel at a time. Later
starts find a mark in the cache and start nothing.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from pathlib import Path

PARTS = 2  # processes: attention takes as long to compile as everything else
PATIENCE_S = 120.0

_running: list[subprocess.Popen[bytes]] = []


def start(*, dtype: str, quantization: str, kv_cache_dtype: str) -> None:
    """Begin compiling what these options need, unless it was compiled before. Returns at once; fails silently."""
    from offgen.backends.compile_cache import kernel_cache
    from offgen.backends.host import available_cpus

    told = (dtype, quantization, kv_cache_dtype)
    folder = kernel_cache()
    if available_cpus() < PARTS or folder is None:
        return
    for part in range(PARTS):
        mark = folder / "-".join(("compiled", *told, str(part)))
        if mark.exists():
            continue
        command = [sys.executable, "-m", "offgen.backends.compile_ahead", *told, str(part), str(mark)]
        try:
            nowhere = subprocess.DEVNULL
            _running.append(subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere))
        except OSError:
            return  # then they are compiled when they are needed


def finish() -> None:
    """Wait for what was started: compiling the same here would take as long."""
    while _running:
        process = _running.pop()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.terminate()


@atexit.register
def _stop() -> None:
    for process in _running:
        process.terminate()


def compile_part(part: int, *, dtype: str, quantization: str, kv_cache_dtype: str) -> None:
    """What one of the processes does."""
    from offgen.backends.choice import open_backend

    backend = open_backend("cpu", dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype, threads=1)
    backend.compile_kernels(part)  # type: ignore[attr-defined]


if __name__ == "__main__":
    *told, number, mark = sys.argv[1:]
    compile_part(int(number), dtype=told[0], quantization=told[1], kv_cache_dtype=told[2])
    Path(mark).touch()
