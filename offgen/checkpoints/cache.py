"""Where converted models are kept, and how one is made only once. Knows no format."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from offgen.errors import UsageError


def cache_folder() -> Path:
    """OFFGEN_CACHE, else `offgen` in the user's cache folder."""
    own = os.environ.get("OFFGEN_CACHE")
    if own:
        return Path(own).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "offgen"


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made by make(temporary folder) if it is not there yet, and then renamed into place.

    Of several processes that start together one makes it, the others wait. A crash leaves nothing under the final name.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # an flock dies with its process, so that a crash never leaves a lock behind
        with (target.parent / f"{target.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                _make_and_rename(target, make)
    except OSError as error:
        raise UsageError(
            f"{error.filename or target}: the converted model cannot be written: {error.strerror or error}",
            hint="OFFGEN_CACHE names another cache folder",
        ) from error
    return target


def _make_and_rename(target: Path, make: Callable[[Path], None]) -> None:
    temporary = target.with_name(target.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a crashed process: the lock is ours
    temporary.mkdir()
    try:
        make(temporary)
        for path in temporary.iterdir():
            _sync(path)
        temporary.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
