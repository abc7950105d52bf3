"""The commands by name, and what becomes of their exceptions: a message on stderr and an exit code, no traceback."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from offgen.cli.console import complain
from offgen.cli.help import PlainCommand
from offgen.errors import OffgenError

# command: what it does; the function of that name in the file of that name
COMMANDS = {
    "run": "Turn a dataset of prompts into a dataset of completions.",
    "plan": "Say what a job would do and cost, before any weights load.",
    "report": "Say what a job did.",
    "verify": "Check that an output has every input row exactly once.",
    "convert": "Turn one dataset format into another.",
    "simulate": "Play a workload through the scheduler on a cost model.",
    "bench": "Measure the engine on this machine.",
    "info": "Versions, devices, and what this machine can run.",
}

BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended
CLICK_PROBLEM: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, wherever it is kept


class LazyGroup(TyperGroup):
    """Loads the file of the one command that is asked for: the others may import what they like."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"offgen.cli.{cmd_name}")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = {"help_option_names": ["-h", "--help"]}
        alone.command(cmd_name, cls=PlainCommand, context_settings=settings)(getattr(module, cmd_name))
        return get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from offgen import __version__

        typer.echo(f"offgen {__version__}")
        raise typer.Exit


@app.callback()
def offgen(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_show_version, is_eager=True),
) -> None:
    """Offline batch generation with language models: a dataset of prompts in, a dataset of completions out."""


def run_command_line(argv: Sequence[str] | None) -> int:
    """Parse and run; whatever a command raises becomes a message and an exit code."""
    try:
        code = get_command(app)(args=argv, prog_name="offgen", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _reader_went_away()
    except OffgenError as error:
        if error.exit_code != BROKEN_PIPE:
            complain(error.message, error.hint, label=getattr(error, "label", "error"))
            return error.exit_code
        return _reader_went_away()
    except CLICK_PROBLEM as problem:
        return _usage_problem(problem)
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return 130
    except Exception as problem:
        if os.environ.get("OFFGEN_DEBUG"):
            raise
        complain(f"{type(problem).__name__}: {problem}", "OFFGEN_DEBUG=1 shows where it happened")
        return 1


def _usage_problem(problem: Any) -> int:
    """What the parser itself refuses: an unknown option, a missing value, no command."""
    context = getattr(problem, "ctx", None)
    if type(problem).__name__ == "NoArgsIsHelpError":
        typer.echo(problem.format_message(), err=True)
    else:
        hint = None if context is None else f"{context.command_path} --help"
        complain(problem.format_message(), hint)
    return 2


def _reader_went_away() -> int:
    """Quiet, and so that Python's own flush at exit does not complain either."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    return BROKEN_PIPE
