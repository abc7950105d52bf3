"""With what a job ran: package versions, the commit, peak memory. Imports none of the packages it names."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import offgen

PACKAGES = ("torch", "transformers", "tokenizers", "triton", "numba", "pyarrow", "datasets", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """offgen, Python, and the packages that are installed."""
    found = {"offgen": offgen.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout that offgen runs from; None for an installed package."""
    root = Path(offgen.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        run = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def peak_rss_bytes() -> int:
    """The most memory this process has held."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # no Linux
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
