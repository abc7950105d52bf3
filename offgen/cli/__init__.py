"""The front door: one file per command. Loads Typer when a command line is read, and no more than that."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

STOPPED = 129  # and above: a signal ended the command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; by default the program's own) and return its exit code."""
    try:
        from offgen.cli.app import run_command_line

        code = run_command_line(argv)
    except KeyboardInterrupt:  # before or after the command itself
        code = 130
    if argv is None and code >= STOPPED:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End without Python's own end: it may wait for ever for a library that a signal interrupted in its import."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


__all__ = ["main"]
