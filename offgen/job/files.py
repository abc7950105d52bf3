"""Small files that appear whole: written beside their place, then renamed into it."""

from __future__ import annotations

import os
from pathlib import Path

from offgen.errors import UsageError


def check_place(flag: str, path: Path | None) -> None:
    """Raise UsageError for a file that could not be written when its time comes."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        what = "is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        raise UsageError(f"{flag} {path}: {what}")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` with `text`; a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
