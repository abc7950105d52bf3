"""What the user typed for INPUT, as a list of files: globs, folders in natural order, hive folders, URLs, suffixes.

Knows names and places of files, not what is in them.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from offgen.errors import UsageError
from offgen.readers.source import opening
from offgen.readers.streams import COMPRESSIONS, Location

_FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
}
_TEXT_FORMATS = ("jsonl", "json", "csv", "openai-batch")
FORMAT_NAMES = {
    "parquet": "parquet",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "arrow": "arrow",
    "feather": "arrow",
    "csv": "csv",
    "openai-batch": "openai-batch",
}
_HIVE = re.compile(r"([^=/]+)=([^/]*)")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_STATE_SUFFIX = ".offgen"  # OUTPUT.offgen/, where a job keeps its state


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read. `hive` holds the key=value folders it lies in, as text (None: hive's null)."""

    location: Location
    format: str
    compression: str = ""
    hive: dict[str, str | None] = field(default_factory=dict)


def find_files(path: str, input_format: str | None, *, output: Path | None = None) -> list[InputFile]:
    """The files that one INPUT names, in order. UsageError if there are none, or if one named is `output`.

    output   what is made of the input: files that a folder or glob holds there are none of it
    """
    filesystem, root = _open_filesystem(path)
    if filesystem is None:
        found = _find_local(root, input_format, None if output is None else output.resolve())
    else:
        with opening(path, "a file or folder"):
            found = _find_remote(filesystem, root, path, input_format)
    return [_input_file(filesystem, name, file, hive, input_format) for name, file, hive in found]


def hive_type(values: Iterable[str | None]) -> pa.DataType:
    """The type that pyarrow infers for a hive key with these values: int32 if all are such, else text."""
    texts = [value for value in values if value is not None]
    try:
        pa.array(texts, pa.string()).cast(pa.int32())
    except pa.ArrowInvalid:
        return pa.string()
    return pa.int32() if texts else pa.string()


def natural_key(path: str) -> tuple[Any, ...]:
    """Sorts part-2 before part-10, folder by folder."""
    parts = [re.split(r"([0-9]+)", part) for part in path.split("/")]  # texts and digits in turn
    return (*[tuple(int(s) if i % 2 else s for i, s in enumerate(part)) for part in parts], (path,))


def _open_filesystem(path: str) -> tuple[Any, str]:
    """(None, local path) or (fsspec filesystem, its path)."""
    if "://" not in path:
        return None, path
    with opening(path, "a URL"):
        import fsspec

        filesystem, root = fsspec.core.url_to_fs(path)
        if "file" in (filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)):
            return None, root
        return filesystem, root


_Found = tuple[str, str, str]  # name for messages, path, the part of the path whose key=value folders count


def _find_local(path: str, input_format: str | None, output: Path | None) -> list[_Found]:
    if Path(path).is_dir():
        own = _Own(Path(path), output)
        names = _choose(path, [name for name in _walk(path) if not own.holds(Path(path, name))], input_format)
        return [(str(Path(path, name)), str(Path(path, name)), name) for name in names]
    if Path(path).exists():
        if Path(path).resolve() == output:
            raise UsageError(f"{path}: is the input and the output", hint="give another output")
        return [(path, path, "")]
    if not glob.has_magic(path):
        raise UsageError(f"{path}: no such file or folder")
    matches = sorted(glob.glob(path, recursive=True), key=natural_key)  # noqa: PTH207 — Path.glob drops hidden `./`
    own = _Own(Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(path).parts)), output)
    matches = [match for match in matches if not own.holds(Path(match))]
    found = [(match, match, _after_magic(path, match)) for match in matches if not Path(match).is_dir()]
    for folder in matches if not found else []:  # a glob of folders, as in lang=*
        inside = _find_local(folder, input_format, output)
        found += [(name, file, f"{_after_magic(path, folder)}/{tail}") for name, file, tail in inside]
    if not found:
        raise UsageError(f"{path}: no file matches")
    return found


def _walk(folder: str) -> list[str]:
    found: list[str] = []
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:  # a link that leads back up
            folders.clear()
            continue
        seen.add(real)
        found += [Path(root, name).relative_to(folder).as_posix() for name in names]
    return found


class _Own:
    """What lies below a folder and is no input: the state that jobs keep beside outputs, and this job's own output."""

    def __init__(self, folder: Path, output: Path | None) -> None:
        self._folder = folder
        self._output = None if output is None or output in _with_parents(folder) else output

    def holds(self, path: Path) -> bool:
        if any(part.endswith(_STATE_SUFFIX) for part in path.relative_to(self._folder).parts):
            return True
        return self._output is not None and self._output in _with_parents(path)


def _with_parents(path: Path) -> tuple[Path, ...]:
    real = path.resolve()
    return (real, *real.parents)


def _choose(folder: str, names: Sequence[str], input_format: str | None) -> list[str]:
    """The data files of a folder, in natural order: those with a known suffix, hidden ones (`_` or `.`) left out."""
    seen = [name for name in names if not any(part.startswith(("_", ".")) for part in name.split("/"))]
    kinds = {name: format_of(name)[0] for name in seen}
    if input_format is None:
        chosen = [name for name in seen if kinds[name]]
    else:
        suffix_format = "jsonl" if input_format == "openai-batch" else input_format
        chosen = [name for name in seen if kinds[name] == suffix_format] or seen
    if not chosen:
        raise UsageError(f"{folder}: no input files in this folder", hint="known suffixes: " + " ".join(_FORMATS))
    formats = {kinds[name] for name in chosen}
    if "json" in formats and len(formats) > 1:
        odd = next(name for name in chosen if kinds[name] == "json")
        raise UsageError(
            f"{folder}: holds {odd} beside files of another format", hint=f"name the files, as in '{folder}/*.parquet'"
        )
    return sorted(chosen, key=natural_key)


def _find_remote(filesystem: Any, root: str, url: str, input_format: str | None) -> list[_Found]:
    protocol = url.split("://", 1)[0]

    def name(path: str) -> str:
        return f"{protocol}://{path.lstrip('/')}"

    if filesystem.isfile(root):
        return [(url, root, "")]
    if filesystem.isdir(root):
        base = root.rstrip("/") + "/"
        tails = [path[len(base) :] for path in filesystem.find(root) if path.startswith(base)]
        return [(name(base + tail), base + tail, tail) for tail in _choose(url, tails, input_format)]
    if not glob.has_magic(root):
        raise UsageError(f"{url}: no such file or folder")
    files = [path for path in sorted(filesystem.glob(root), key=natural_key) if filesystem.isfile(path)]
    if not files:
        raise UsageError(f"{url}: no file matches")
    return [(name(path), path, _after_magic(root, path)) for path in files]


def _after_magic(pattern: str, path: str) -> str:
    """What of a matched path lies at or below the pattern's first wildcard."""
    fixed = 0
    for part in pattern.split("/"):
        if glob.has_magic(part):
            break
        fixed += 1
    return "/".join(path.split("/")[fixed:])


def format_of(path: str) -> tuple[str, str]:
    """(format, compression) by suffix; format is empty if unknown."""
    lower = path.lower()
    compression = next((suffix for suffix in COMPRESSIONS if lower.endswith(suffix)), "")
    stem = lower[: len(lower) - len(compression)]
    kind = next((kind for suffix, kind in _FORMATS.items() if stem.endswith(suffix)), "")
    return ("", compression) if compression and kind and kind not in _TEXT_FORMATS else (kind, compression)


def _input_file(filesystem: Any, name: str, path: str, tail: str, input_format: str | None) -> InputFile:
    kind, compression = format_of(path)
    kind = input_format or kind
    if not kind:
        raise UsageError(
            f"{name}: its suffix tells no format", hint="--input-format " + "|".join(sorted(set(FORMAT_NAMES.values())))
        )
    folders = tail.split("/")[:-1]
    pairs = [match.groups() for folder in folders if (match := _HIVE.fullmatch(folder))]
    hive = {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs}
    return InputFile(Location(name, path, filesystem), kind, compression if kind in _TEXT_FORMATS else "", hive)
