"""Turns one option's value, as a shell or a TOML file gives it, into what the program uses.

Each parser takes text or a native value and raises ValueError with a plain sentence. Knows no option by name.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Parser = Callable[[Any], Any]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?B)?|B)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"`{text if len(text) <= 60 else text[:57] + '…'}`"


def whole(minimum: int | None = None, maximum: int | None = None) -> Parser:
    """A whole number within bounds."""

    def parse(value: Any) -> int:
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{_shown(value)} is not a whole number")
        _check_bounds(number, minimum, maximum)
        return number

    return parse


def number(minimum: float | None = None, maximum: float | None = None, *, above: float | None = None) -> Parser:
    """A finite number within bounds; `above` is a bound that is not itself allowed."""

    def parse(value: Any) -> float:
        try:
            parsed = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        except ValueError:
            parsed = math.nan
        if not math.isfinite(parsed):
            raise ValueError(f"{_shown(value)} is not a number")
        if above is not None and parsed <= above:
            raise ValueError(f"{parsed:g} is too small: it must be above {above:g}")
        _check_bounds(parsed, minimum, maximum)
        return parsed

    return parse


def _check_bounds(number: float, minimum: float | None, maximum: float | None) -> None:
    if minimum is not None and number < minimum:
        raise ValueError(f"{number:g} is too small: the least is {minimum:g}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{number:g} is too large: the most is {maximum:g}")


def choice(*names: str) -> Parser:
    """One of `names`."""

    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{_shown(value)} is not one of {', '.join(names)}")
        return str(value)

    return parse


def name(value: Any) -> str:
    """A column, a path, a model: text that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not text")
    if not value.strip() or "\0" in value:
        raise ValueError("it is empty")
    return value


def plain_text(value: Any) -> str:
    """Any text, as it is."""
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not text")
    return value


def text(value: Any) -> str:
    """Any text; `@file` is the file's content without its last line end, `@@…` a text that starts with @."""
    said = plain_text(value)
    if said.startswith("@@"):
        return said[1:]
    if not said.startswith("@") or said == "@":
        return said
    try:
        content = Path(said[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ValueError(
            f"file `{said[1:]}` cannot be read: {reason} (write @@… for a text that starts with @)"
        ) from problem
    return content.removesuffix("\n").removesuffix("\r")


def full_text(value: Any) -> str:
    """A text that says something."""
    parsed = text(value)
    if not parsed:
        raise ValueError("it is empty")
    return parsed


def many(parse_one: Parser) -> Parser:
    """An option that may be repeated, or a list of a file: a tuple."""

    def parse(value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(parse_one(one) for one in values)

    return parse


def names(value: Any) -> tuple[str, ...]:
    """`a,b`, or a list of a file. No name twice."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        raise ValueError(f"{_shown(value)} is not a list of names")
    parsed = tuple(name(one).strip() if isinstance(value, str) else name(one) for one in listed)
    for one in parsed:
        if parsed.count(one) > 1:
            raise ValueError(f"`{one}` is named twice")
    return parsed


def token_ids(value: Any) -> tuple[int, ...]:
    """`1,2`, a number, or a list of a file."""
    listed = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    return tuple(whole(0)(one) for one in listed)


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object, or a table of a file."""
    if isinstance(value, Mapping):
        return dict(value)
    content = text(value)
    try:
        parsed = json.loads(content)
    except json.JSONDecodeError as problem:
        raise ValueError(f"{_shown(content)} is not JSON: {problem}") from problem
    if not isinstance(parsed, dict):
        raise ValueError(f"{_shown(content)} is not a JSON object")
    return parsed


def size(value: Any) -> int:
    """`4GiB`, `512MiB`, `4GB` (powers of 1000), `4G` (as GiB), or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        parsed = value
    else:
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"{_shown(value)} is not a size like 4GiB or 512MiB")
        amount, unit, suffix = match.groups()
        base = 1000 if (suffix or "").upper() == "B" else 1024
        parsed = int(float(amount) * base ** _POWERS.get((unit or "").upper(), 0))
    if parsed <= 0:
        raise ValueError("a size must be above 0")
    return parsed


def switch(value: Any) -> bool:
    """True or false (flags come as such; a file says `true`)."""
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not true or false")
    return value


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many rows may fail: a count, or a share of the rows."""

    rows: int | None = None
    percent: float | None = None

    def covers(self, errors: int, total: int) -> bool:
        """True while `errors` of `total` rows are within it."""
        if self.percent is not None:
            return errors * 100 <= self.percent * total
        return errors <= (self.rows or 0)

    def __str__(self) -> str:
        return f"{self.rows}" if self.percent is None else f"{self.percent:g}%"


def allowance(value: Any) -> Allowance:
    """`0`, `12` or `5%`."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return Allowance(percent=number(0, 100)(value.strip()[:-1]))
    return Allowance(rows=whole(0)(value))


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows with row_id % num_shards == index."""

    index: int
    num_shards: int

    def __str__(self) -> str:
        return f"{self.index}/{self.num_shards}"


def shard(value: Any) -> Shard:
    """`0/8`, or `slurm` for what the job array's environment says."""
    if value == "slurm":
        return _slurm_shard(os.environ)
    match = re.fullmatch(r"(\d+)/(\d+)", value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{_shown(value)} is not I/N (like 0/8) or slurm")
    return _checked_shard(int(match[1]), int(match[2]))


def _checked_shard(index: int, num_shards: int) -> Shard:
    if num_shards < 1:
        raise ValueError("there must be one shard at least")
    if index >= num_shards:
        raise ValueError(f"shard {index} of {num_shards} does not exist: they count from 0 to {num_shards - 1}")
    return Shard(index, num_shards)


def _slurm_shard(environment: Mapping[str, str]) -> Shard:
    found = {}
    for key in ("ID", "MIN", "COUNT"):
        variable = f"SLURM_ARRAY_TASK_{key}"
        if variable not in environment:
            raise ValueError(f"{variable} is not set: this is no Slurm array job (sbatch --array=0-7)")
        found[key] = whole(0)(environment[variable])
    step = whole(1)(environment.get("SLURM_ARRAY_TASK_STEP", "1"))
    return _checked_shard((found["ID"] - found["MIN"]) // step, found["COUNT"])
