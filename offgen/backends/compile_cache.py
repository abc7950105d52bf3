"""Where compiled CPU kernels are kept, so that a second start compiles nothing. Knows folders; compiles nothing.

The folder is named after the kernels' sources: an edit anywhere in them starts a new one, which Numba, looking at one
file at a time, would miss. Numba itself tells apart processors and its own versions.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import numba


def use_compile_cache() -> None:
    """Point Numba at the cache folder. To be called before a kernel module is imported."""
    numba.config.CACHE_DIR = str(kernel_cache() or tempfile.mkdtemp(prefix="offgen-numba-"))


def kernel_cache() -> Path | None:
    """The folder that outlives this process; None if it cannot be written, as in a read-only home."""
    folder = cache_root() / f"numba-{_source_hash()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


def cache_root() -> Path:
    """OFFGEN_CACHE, else the user's cache folder."""
    chosen = os.environ.get("OFFGEN_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/offgen").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "offgen"


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("cpu*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
