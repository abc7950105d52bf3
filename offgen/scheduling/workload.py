"""What a simulation plays: rows as counts, from a file or from a distribution."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

from offgen.errors import UsageError

EXAMPLES = (
    "lognormal:n=2000,median=64,sigma=1,max=2048,prompt=100  uniform:n=500,min=8,max=400  "
    "fixed:n=64,length=128  list:8/16/400"
)


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """`num_output_tokens` are made; the scheduler only knows that there are at most `max_tokens`."""

    prompt_ids: Sequence[int]
    num_output_tokens: int
    max_tokens: int
    arrival_s: float = 0.0


def read_workload(source: str, *, seed: int = 0) -> list[SimulatedRow]:
    """Rows of a JSON-lines file, or of a distribution such as `lognormal:n=2000,median=64,sigma=1,max=2048`."""
    kind, colon, given = source.partition(":")
    if colon and kind in DISTRIBUTIONS and not Path(source).exists():
        return list(_drawn_rows(source, kind, given, Random(seed)))
    return list(_file_rows(source))


# files


def _file_rows(path: str) -> Iterator[SimulatedRow]:
    """Each line: prompt_token_ids or prompt_tokens (a count), and completion_tokens, max_tokens or both."""
    try:
        text = Path(path).read_bytes()
    except OSError as problem:
        raise UsageError(
            f"{path}: cannot be read: {problem.strerror or problem}", hint=f"a JSON-lines file, or one of: {EXAMPLES}"
        ) from problem
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as problem:
            raise UsageError(f"{path}:{number}: not JSON: {problem}") from problem
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number}: not a JSON object")
        if row.get("finish_reason") == "error":
            continue  # a failed row of an offgen output took no steps
        yield _file_row(row, number, f"{path}:{number}")


def _file_row(row: dict[str, Any], number: int, where: str) -> SimulatedRow:
    prompt_ids = row.get("prompt_token_ids")
    if prompt_ids is None:
        prompt_ids = _unique_prompt(number, _count(row, "prompt_tokens", where, least=1))
    elif not isinstance(prompt_ids, list) or not prompt_ids or not all(_is_id(value) for value in prompt_ids):
        raise UsageError(f"{where}: `prompt_token_ids` is not a list of token ids")
    names = [name for name in ("completion_tokens", "max_tokens") if row.get(name) is not None]
    if not names:
        raise UsageError(f"{where}: neither `completion_tokens` nor `max_tokens` is there")
    counts = [_count(row, name, where, least=1) for name in names]
    arrival_s = row.get("arrival_s", 0.0)
    if isinstance(arrival_s, bool) or not isinstance(arrival_s, int | float) or not 0 <= arrival_s < float("inf"):
        raise UsageError(f"{where}: `arrival_s` must be a number of 0 or more")
    return SimulatedRow(prompt_ids, min(counts), counts[-1], float(arrival_s))


def _count(row: dict[str, Any], name: str, where: str, *, least: int) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{where}: `{name}` must be a whole number of {least} or more, not {value!r}")
    return value


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _unique_prompt(number: int, num_tokens: int) -> array[int]:
    """Ids that share no block with another row's: their number, over and over."""
    return array("i", [number]) * num_tokens


# distributions


def _drawn_rows(source: str, kind: str, given: str, random: Random) -> Iterator[SimulatedRow]:
    settings = _settings(source, kind, given)
    draw = DISTRIBUTIONS[kind][1]
    num_rows = len(settings["list"]) if kind == "list" and "n" not in settings else int(settings.get("n", 1000))
    num_prompt, num_shared = int(settings.get("prompt", 100)), int(settings.get("shared", 0))
    num_groups, rate = int(settings.get("groups", 1)), settings.get("rate", 0.0)
    if num_rows < 1 or num_prompt < 1 or num_groups < 1 or not 0 <= num_shared < num_prompt:
        raise UsageError(f"{source}: n, prompt and groups must be at least 1, and shared less than prompt")
    lengths = [max(1, draw(random, settings, place)) for place in range(num_rows)]
    max_tokens = int(settings.get("max_tokens", settings.get("max", max(lengths))))
    arrival_s = 0.0
    for place, length in enumerate(lengths):
        prompt = _unique_prompt(num_groups + place, num_prompt - num_shared)
        if num_shared:
            prompt = _unique_prompt(random.randrange(num_groups), num_shared) + prompt
        if rate:
            arrival_s += random.expovariate(rate)
        yield SimulatedRow(prompt, min(length, max_tokens), max_tokens, arrival_s)


def _settings(source: str, kind: str, given: str) -> dict[str, Any]:
    known = {"n", "prompt", "shared", "groups", "rate", "max_tokens", *DISTRIBUTIONS[kind][0]}
    settings: dict[str, Any] = {}
    for part in filter(None, given.split(",")):
        name, equals, value = part.partition("=")
        try:
            if kind == "list" and not equals:
                settings["list"] = [int(length) for length in part.split("/")]
                continue
            settings[name] = float(value)
        except ValueError:
            raise UsageError(f"{source}: `{part}` is not NAME=NUMBER", hint=EXAMPLES) from None
        if name not in known:
            raise UsageError(f"{source}: `{name}` is unknown here", hint=f"known: {', '.join(sorted(known))}")
        if not 0 <= settings[name] < float("inf"):
            raise UsageError(f"{source}: `{name}` must be 0 or more")
    missing = [name for name in DISTRIBUTIONS[kind][2] if name not in settings]
    if missing:
        raise UsageError(f"{source}: `{missing[0]}` is missing", hint=EXAMPLES)
    return settings


def _lognormal(random: Random, settings: dict[str, Any], place: int) -> int:
    median = max(settings["median"], 1.0)
    drawn = exp(min(random.gauss(log(median), settings["sigma"]), 700.0))
    length: float = min(max(drawn, settings.get("min", 1)), settings.get("max", drawn))
    return round(length)


def _uniform(random: Random, settings: dict[str, Any], place: int) -> int:
    least, most = int(settings.get("min", 1)), int(settings["max"])
    return random.randint(min(least, most), most)


def _fixed(random: Random, settings: dict[str, Any], place: int) -> int:
    return int(settings["length"])


def _listed(random: Random, settings: dict[str, Any], place: int) -> int:
    lengths: list[int] = settings["list"]
    return lengths[place % len(lengths)]


Draw = Callable[[Random, dict[str, Any], int], int]
# name: its own settings, how a length is drawn, which settings it cannot do without
DISTRIBUTIONS: dict[str, tuple[set[str], Draw, tuple[str, ...]]] = {
    "lognormal": ({"median", "sigma", "min", "max"}, _lognormal, ("median", "sigma")),
    "uniform": ({"min", "max"}, _uniform, ("max",)),
    "fixed": ({"length"}, _fixed, ("length",)),
    "list": ({"list"}, _listed, ("list",)),
}
