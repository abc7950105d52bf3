"""What is said to people, on stderr: stdout belongs to data. Colour is decoration, never the message."""

from __future__ import annotations

import contextlib
import os
import sys


def complain(message: str, hint: str | None = None, *, label: str = "error") -> None:
    """What went wrong and what to try, in the house's form."""
    say(f"{label}: {message}" if hint is None else f"{label}: {message}\nhint: {hint}")


def say(text: str) -> None:
    """A line on stderr; if stderr is gone, nobody is listening and nothing is lost."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def is_terminal() -> bool:
    """True where a live view can be drawn."""
    if os.environ.get("TERM", "") in {"", "dumb"}:
        return False
    return sys.stderr is not None and sys.stderr.isatty()
