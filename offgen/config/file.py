"""Reads a job file: TOML or YAML, the command line's options as keys, with dashes or underscores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offgen.config.job import Given, unknown_key
from offgen.config.option import Option, options_of
from offgen.errors import UsageError

ALIASES = {"input": "inputs"}


def read_job_file(path: Path, groups: Sequence[type]) -> dict[str, Given]:
    """What the file says, by field name. Raises UsageError for a file that cannot be read and for unknown keys."""
    known: dict[str, tuple[Option, bool | None]] = {}
    for group in groups:
        for option in options_of(group):
            known |= {key: (option, sets) for key, sets in option.keys.items()}
    given: dict[str, Given] = {}
    for key, value in _load(path).items():
        name = str(key).replace("-", "_")
        name = ALIASES.get(name, name)
        if name not in known:
            raise unknown_key(str(path), str(key), {one.replace("_", "-"): None for one in known})
        option, sets = known[name]
        where = f"{path}: {key}"
        if option.name in given:
            raise UsageError(f"{where}: given twice", hint=f"it is also there as {given[option.name].where}")
        if value is None:
            continue
        given[option.name] = Given(_switched(value, sets, where), where)
    return given


def _switched(value: Any, sets: bool | None, where: str) -> Any:
    """`no-stats: true` is `stats: false`."""
    if sets is None:
        return value
    if not isinstance(value, bool):
        raise UsageError(f"{where}: `{value}` is not true or false")
    return sets if value else not sets


def _load(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    if suffix not in {".toml", ".yaml", ".yml"}:
        raise UsageError(f"{path}: a job file ends in .toml, .yaml or .yml")
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise UsageError(f"{path}: cannot be read: {reason}") from problem
    if suffix == ".toml":
        import tomllib

        try:
            return tomllib.loads(content)
        except tomllib.TOMLDecodeError as problem:
            raise UsageError(f"{path}: not TOML: {problem}") from problem
    import yaml

    try:
        loaded = yaml.safe_load(content)
    except yaml.YAMLError as problem:
        raise UsageError(f"{path}: not YAML: {problem}") from problem
    if loaded is not None and not isinstance(loaded, dict):
        raise UsageError(f"{path}: a job file is a mapping of options to values")
    return loaded or {}
