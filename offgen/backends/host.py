"""What the operating system grants this process: memory and processors, container limits included.

Knows cgroup versions 1 and 2; where neither answers, the machine's own figures count.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")

MAX_POOL_BYTES = 4 << 30  # beyond this, more rows at once gain nothing on a CPU


def available_memory_bytes(*, proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> int:
    """What may still be allocated: the smallest of the machine's free memory and of every enclosing cgroup's room."""
    room = [_machine_available_bytes(proc)]
    for folder in _cgroup_folders("memory", proc, cgroup_root):
        limit = _read_int(folder / "memory.max") or _read_int(folder / "memory.limit_in_bytes")
        used = _read_int(folder / "memory.current") or _read_int(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            room.append(limit - used + _reclaimable_bytes(folder))
    return max(0, min(room))


def available_cpus(*, proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> int:
    """Processors this process may keep busy: its affinity mask, cut by the cgroups' CPU quotas; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    for folder in _cgroup_folders("cpu", proc, cgroup_root):
        quota = _cpu_quota(folder)
        if quota is not None:
            cpus = min(cpus, max(1, math.ceil(quota)))
    return cpus


def kv_budget_bytes() -> int:
    """What the KV pool may take by default: half of what is left, and no more than rows that run at once can use."""
    return min(MAX_POOL_BYTES, available_memory_bytes() // 2)


def _machine_available_bytes(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_folders(controller: str, proc: Path, root: Path) -> Iterator[Path]:
    """This process's group and its parents, in the hierarchy that has the controller."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines or ["0::/"]:
        _, names, path = line.split(":", 2)
        if names == "":
            mount = root
        elif controller in names.split(","):
            mount = next((root / name for name in (names, controller) if (root / name).is_dir()), root)
        else:
            continue
        # inside a container the path may be the host's, and the mount already the group itself: both are tried
        folder = mount / path.strip("/")
        while folder != mount:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield mount


def _reclaimable_bytes(folder: Path) -> int:
    """Page cache that the kernel gives back before it kills."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stat = dict(line.split()[:2] for line in lines if " " in line)
    return int(stat.get("inactive_file") or stat.get("total_inactive_file") or 0)


def _cpu_quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
    if quota_us is None or period_us is None or quota_us <= 0 or period_us <= 0:
        return None
    return quota_us / period_us


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or the word `max`
        return None
