"""Makes a Typer command of the option groups in config, and gives back what was said on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from offgen.config.file import read_job_file
from offgen.config.job import Given
from offgen.config.option import Option, options_of

# the default of a command's `config` parameter
JOB_FILE: Any = typer.Option(
    None,
    "--config",
    metavar="FILE",
    help="Job file (TOML or YAML) with these options as keys.",
    rich_help_panel="Data",
    show_default=False,
)


def takes_options(
    groups: Sequence[type], *, without: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give `command(**given)` the groups' options as its parameters, beside the parameters of its own."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            one
            for one in inspect.signature(command, eval_str=True).parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters = [
            _parameter(option, group.__doc__ or "")
            for group in groups
            for option in options_of(group)
            if option.name not in without
        ]
        # what has no default in Python comes first there; for a command line the order is only that of its help page
        keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in [*parameters, *own]]
        command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in keyword_only}
        return command

    return decorate


def _parameter(option: Option, panel: str) -> inspect.Parameter:
    annotation: Any
    if option.name == "inputs":
        default = typer.Argument(None, metavar="INPUT", help=option.help, show_default=False)
        annotation = list[str]
    else:
        flag = option.flag if option.off is None else f"{option.flag}/{option.off}"
        names = [flag] if option.short is None else [option.short, flag]
        default = typer.Option(
            None, *names, metavar=option.metavar, help=_help(option), rich_help_panel=panel, show_default=False
        )
        annotation = bool | None if option.is_switch else list[str] if option.repeats else str | None
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(option: Option) -> str:
    """The help line, with the default where it says something."""
    if option.default in (None, "", (), False) or "default" in option.help:
        return option.help
    default = option.default
    shown = "on" if default is True else f"{default:g}" if isinstance(default, float) else str(default)
    return f"{option.help} [{shown}]"


def given_options(
    flags: Mapping[str, Any], groups: Sequence[type], job_file: Path | None, *, file_groups: Sequence[type]
) -> dict[str, Given]:
    """What was said for each option: flags win over the job file (which may hold options of `file_groups` too)."""
    given = read_job_file(job_file, file_groups) if job_file is not None else {}
    for group in groups:
        for option in options_of(group):
            value = flags.get(option.name)
            if value is not None and value != []:
                where = "INPUT" if option.name == "inputs" else option.flag
                given[option.name] = Given(value, where)
    return given
