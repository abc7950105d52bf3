"""From what the user typed to an Input: each path to its sources, and their columns to one schema."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from offgen.columns import unify
from offgen.errors import UsageError
from offgen.readers.arrow import ArrowSource
from offgen.readers.csv import CsvSource
from offgen.readers.hf_dataset import HubSource, hub_name, is_saved_dataset, saved_files
from offgen.readers.input import Input
from offgen.readers.json_array import array_to_lines, starts_array
from offgen.readers.jsonl import SAMPLE_ROWS, JsonlSource
from offgen.readers.openai_batch import is_request, parse_request
from offgen.readers.parquet import ParquetSource
from offgen.readers.paths import FORMAT_NAMES, InputFile, find_files, hive_type
from offgen.readers.source import Source, opening
from offgen.readers.stdin import StreamSpool
from offgen.readers.streams import Location

_FOREIGN = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x1f\x8b": "gzip data (its name should end in .gz)",
    b"\x28\xb5\x2f\xfd": "zstd data (its name should end in .zst)",
    b"BZh": "bzip2 data (its name should end in .bz2)",
    b"\xfd7zXZ": "xz data (its name should end in .xz)",
    b"\xff\xfe": "UTF-16 text (JSON is UTF-8)",
    b"\xfe\xff": "UTF-16 text (JSON is UTF-8)",
}

_STDIN = ("-", "/dev/stdin")


def open_input(
    paths: Sequence[str],
    *,
    input_format: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    spool_dir: Path | None = None,
    output: Path | None = None,
) -> Input:
    """Everything INPUT names, in order, as one Input.

    input_format  parquet, jsonl, json, arrow, csv or openai-batch, whatever the suffixes say
    subset, split of a Hugging Face dataset
    spool_dir     where `-` (JSONL on stdin) is kept for a resume; nothing is written before rows are read
    output        what is made of it: not an input, though a folder or glob may hold it
    Raises UsageError, naming the file, for what cannot be opened.
    """
    if input_format is not None and input_format not in FORMAT_NAMES:
        raise UsageError(f"unknown input format `{input_format}`", hint="one of " + ", ".join(sorted(FORMAT_NAMES)))
    chosen = None if input_format is None else FORMAT_NAMES[input_format]
    if not paths:
        raise UsageError("no input is given")
    if (split is not None or subset is not None) and not any(_is_dataset(path) for path in paths):
        raise UsageError(
            "--split and --subset are for Hugging Face datasets", hint="hf://datasets/ORG/NAME or a folder"
        )
    sources: list[Source] = []
    files: list[InputFile | None] = []
    for path in paths:
        for source, file in _open(path, chosen, subset, split, spool_dir, output):
            sources.append(source)
            files.append(file)
    constants = _hive_columns(files)
    sources, schema, is_batch = _learn_schema(sources, chosen)
    for table in constants:
        schema = _with_columns(schema, table.schema)
    return Input(sources, schema=schema, constants=constants, is_openai_batch=is_batch)


def _is_dataset(path: str) -> bool:
    return hub_name(path) is not None or Path(path).is_dir()


def _open(
    path: str,
    input_format: str | None,
    subset: str | None,
    split: str | None,
    spool_dir: Path | None,
    output: Path | None,
) -> list[tuple[Source, InputFile | None]]:
    if path in _STDIN:
        return [(_open_stream("-", sys.stdin.buffer, input_format, spool_dir), None)]
    with opening(path, "a file or folder"):
        Path(path).exists()  # a name no file can have is found here
    if Path(path).is_fifo() or Path(path).is_char_device():  # as a shell's <(…)
        stream = Path(path).open("rb", buffering=0)  # noqa: SIM115 — read as long as the job runs
        return [(_open_stream(path, stream, input_format, spool_dir), None)]
    hub = hub_name(path)
    if hub is not None:
        return [(HubSource(path, hub[0], revision=hub[1], subset=subset, split=split), None)]
    folder = Path(path)
    if folder.is_dir() and is_saved_dataset(folder):
        return [(ArrowSource(Location(str(file), str(file))), None) for file in saved_files(folder, split)]
    if folder.is_dir() and (split is not None or subset is not None):
        return [(HubSource(path, path, revision=None, subset=subset, split=split), None)]
    return [(_open_file(file), file) for file in find_files(path, input_format, output=output)]


def _open_stream(name: str, stream: Any, input_format: str | None, spool_dir: Path | None) -> JsonlSource:
    if input_format not in (None, "jsonl", "json", "openai-batch"):
        raise UsageError(f"{name}: a pipe is read as JSONL", hint="give a file for other formats")
    spool = StreamSpool(stream, spool_dir, is_kept_anyway=name not in _STDIN)
    return JsonlSource(
        name, spool.chunks, spool.fingerprint, open_head=spool.head, is_head_all=spool.is_head_all, is_live=True
    )


def _open_file(file: InputFile) -> Source:
    if file.format == "parquet":
        return ParquetSource(file.location)
    if file.format == "arrow":
        return ArrowSource(file.location)
    if file.format == "csv":
        return CsvSource(file.location, file.compression)
    return _open_json(file)


def _open_json(file: InputFile) -> JsonlSource:
    location, compression = file.location, file.compression
    with opening(location.name, "JSONL"):
        head = next(location.chunks(compression), b"")
    foreign = next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)
    if foreign is not None and (not foreign.startswith("UTF-16") or b"\0" in head[:64]):
        raise UsageError(f"{location.name}: not JSONL but {foreign}")
    if file.format == "json" and starts_array(head):
        return JsonlSource(location.name, lambda: array_to_lines(location.chunks(compression)), location.fingerprint)
    return JsonlSource(location.name, lambda: location.chunks(compression), location.fingerprint)


def _learn_schema(sources: list[Source], input_format: str | None) -> tuple[list[Source], pa.Schema, bool]:
    """The sources (OpenAI request files told apart), the columns of all, and whether there is a request file."""
    schema = pa.schema([])
    left = SAMPLE_ROWS
    learned: list[Source] = []
    has_requests = False
    for source in sources:
        if isinstance(source, JsonlSource):
            first = source.first_record() if input_format in (None, "jsonl") else None
            if input_format == "openai-batch" or (first is not None and is_request(first)):
                source = source.with_parse(parse_request)
                has_requests = True
            if left > 0:
                left -= source.sample(schema, left)
                schema = source.schema
        else:
            schema = unify(schema, source.schema)
        learned.append(source)
    return learned, schema, has_requests


def _hive_columns(files: Sequence[InputFile | None]) -> list[pa.Table]:
    """For each source a table of one row: the values of its key=value folders, typed over all sources."""
    hives = [{} if file is None else file.hive for file in files]
    names = list(dict.fromkeys(name for hive in hives for name in hive))
    kinds = {name: hive_type(hive.get(name) for hive in hives) for name in names}
    return [
        pa.table({name: pa.array([value], pa.string()).cast(kinds[name]) for name, value in hive.items()})
        for hive in hives
    ]


def _with_columns(schema: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """`schema` with each of `columns` in the place of its namesake, or at the end."""
    fields = {field.name: field for field in schema} | {field.name: field for field in columns}
    return pa.schema(list(fields.values()))
