"""The front door: one file per command. Loads Typer when a command line is read, and no more than that."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    from offgen.cli.app import run_command_line

    return run_command_line(argv)


__all__ = ["main"]
