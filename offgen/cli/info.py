"""`offgen info`: versions, devices, and what this machine can run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer


def info(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Say what offgen finds here: versions, processors, memory, GPUs, the models at hand, what is not built yet."""
    from offgen.job.surroundings import surroundings

    found = surroundings()
    typer.echo(json.dumps(found, indent=1) if as_json else "\n".join(_lines(found)))


def _lines(values: dict[str, Any], indent: str = "") -> Iterator[str]:
    width = max(map(len, values), default=0)
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{name}"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, one in enumerate(value):
                yield f"{indent}{name} {index}"
                yield from _lines(one, indent + "  ")
        else:
            yield f"{indent}{name:<{width}}  {_shown(name, value)}"


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
