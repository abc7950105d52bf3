"""What lies at an output, read for checking: the jobs there, their records, and the rows of their visible files.

Reads only. Knows the formats; judges nothing.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from offgen.errors import UsageError
from offgen.writers.commits import CommitLog
from offgen.writers.disk import Disk
from offgen.writers.formats import read_typed
from offgen.writers.layout import FILE_SUFFIXES, STATE_FOLDER, STATE_SUFFIX, Layout, layout_of
from offgen.writers.options import OutputOptions, options_of
from offgen.writers.run_record import RunRecord, load_record
from offgen.writers.summary import ShardSummary

SHARD_FOLDER = re.compile(r"shard-(\d+)-of-(\d+)")
_BATCH_ID = re.compile(r"batch_req_(\d+)")
_LINES = 4096


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """One job's output. `options` and `record` are None where run.json cannot be read."""

    layout: Layout
    record: RunRecord | None
    options: OutputOptions | None

    def summaries(self) -> Iterator[ShardSummary]:
        """What commits.log knows, one shard after another in the order of their last commit."""
        return CommitLog(Disk(), self.layout).last()

    def visible_files(self) -> dict[int, Path]:
        """The files of rows by split; a single file counts as split 0."""
        if self.layout.is_file:
            return {0: self.layout.target} if self.layout.target.exists() else {}
        return self.layout.parts(self.layout.target)


def find_jobs(output: str) -> list[FinishedJob]:
    """The job at `output`, or those of its shards. Raises UsageError if there is nothing of offgen's."""
    path = Path(output)
    folders = [one for one in _entries(path) if SHARD_FOLDER.fullmatch(one.name) and one.is_dir()]
    if folders and not (path / STATE_FOLDER).exists():
        return [_job(folder, is_file=False) for folder in sorted(folders, key=_shard_of)]
    is_file = any(path.name.lower().endswith(suffix) for suffix in FILE_SUFFIXES) and not path.is_dir()
    state_dir = path.with_name(path.name + STATE_SUFFIX) if is_file else path / STATE_FOLDER
    if not path.exists() and not state_dir.exists():
        raise UsageError(f"{output}: there is nothing here")
    if not state_dir.exists():
        raise UsageError(f"{output}: is not an output of offgen (there is no {state_dir})")
    return [_job(path, is_file=is_file)]


def _entries(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _shard_of(folder: Path) -> tuple[int, int]:
    match = SHARD_FOLDER.fullmatch(folder.name)
    assert match is not None, "only shard folders are sorted"
    return int(match[2]), int(match[1])


def _job(path: Path, *, is_file: bool) -> FinishedJob:
    layout = layout_of(str(path), OutputOptions()) if is_file else Layout(path, is_file=False, format="parquet")
    record = load_record(layout.run_path)
    options = None
    if record is not None:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            options = options_of(record.output)
            assert options.format is not None, "a record names its format"
            layout = Layout(layout.target, layout.is_file, options.format, layout.compression)
    return FinishedJob(layout, record, options)


@dataclass(frozen=True, slots=True)
class VisibleRows:
    """Some output rows of one file: their keys, and all their columns for a closer look (None in openai-batch)."""

    row_ids: Any  # int64
    samples: Any  # int64
    num_errors: int
    columns: pa.RecordBatch | Sequence[dict[str, Any]] | None


def visible_rows(path: Path, options: OutputOptions) -> Iterator[VisibleRows]:
    """The rows of one file, in its order. Raises ValueError or ArrowException where it cannot be read."""
    prefix = options.column_prefix
    if options.format in {"parquet", "arrow"}:
        for batch in read_typed(path):
            samples = batch.column(prefix + "sample_index") if options.num_samples > 1 else None
            yield VisibleRows(
                row_ids=np.asarray(batch.column(prefix + "row_id"), np.int64),
                samples=np.zeros(batch.num_rows, np.int64) if samples is None else np.asarray(samples, np.int64),
                num_errors=batch.num_rows - batch.column(prefix + "error").null_count,
                columns=batch,
            )
        return
    for values in _parsed(path):
        yield _batch_rows(values) if options.format == "openai-batch" else _json_rows(values, prefix)


def _parsed(path: Path) -> Iterator[list[dict[str, Any]]]:
    values: list[dict[str, Any]] = []
    with open_text(path) as file:
        for line in file:
            if not line.endswith(b"\n"):
                raise ValueError("the last line has no end")
            values.append(json.loads(line))
            if len(values) == _LINES:
                yield values
                values = []
    if values:
        yield values


def open_text(path: Path) -> BinaryIO:
    """A text file's bytes, decompressed by its name's end."""
    if path.name.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(path))
    if path.name.endswith(".zst"):
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True)
        return io.BufferedReader(reader)
    return path.open("rb")


def _json_rows(values: list[dict[str, Any]], prefix: str) -> VisibleRows:
    return VisibleRows(
        row_ids=np.array([one[prefix + "row_id"] for one in values], np.int64),
        samples=np.array([one.get(prefix + "sample_index", 0) for one in values], np.int64),
        num_errors=sum(one[prefix + "error"] is not None for one in values),
        columns=values,
    )


def _batch_rows(values: list[dict[str, Any]]) -> VisibleRows:
    """A batch line stands for one row; its choices for the samples. An error line stands for all of them as one."""
    ids: list[int] = []
    samples: list[int] = []
    for one in values:
        match = _BATCH_ID.fullmatch(str(one["id"]))
        if match is None:
            raise ValueError(f"the id {one['id']!r} is not one of offgen's")
        choices = one["response"]["body"].get("choices", [None])
        ids += [int(match[1])] * len(choices)
        samples += range(len(choices))
    num_errors = sum(one["error"] is not None for one in values)
    return VisibleRows(np.array(ids, np.int64), np.array(samples, np.int64), num_errors, None)
