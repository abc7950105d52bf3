"""What every format gives: a source of rows in order, in small record batches. Knows no format."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from offgen.errors import JobError, UsageError
from offgen.readers.splits import Wanted

MAX_BATCH_ROWS = 1024  # rows per record batch: enough to hide per-batch costs, few enough for long rows
MAX_BATCH_BYTES = 4 << 20  # and about this many bytes, whichever comes first


@dataclass(frozen=True, slots=True)
class Piece:
    """Some wanted rows of a source, in order.

    row_ids   one per row of `batch`
    places    line (from 1) or row (from 0) in the file, one per row
    objects   the rows as Python dicts, where the format has them anyway (JSON)
    errors    index in `batch` -> what is wrong with that row (its columns are null)
    """

    row_ids: Sequence[int]
    batch: pa.RecordBatch
    places: Sequence[int]
    objects: Sequence[Mapping[str, Any]] | None = None
    errors: Mapping[int, str] = field(default_factory=dict)


class Source(Protocol):
    """One file, table or stream of rows."""

    @property
    def name(self) -> str:
        """As the user wrote it; for messages."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Its columns as known before reading."""
        ...

    @property
    def num_rows(self) -> int | None:
        """None if that takes reading."""
        ...

    def count_rows(self) -> int: ...

    def fingerprint(self) -> dict[str, Any]: ...

    def pieces(self, first_row_id: int, wanted: Wanted, known: pa.Schema) -> Generator[Piece, None, int]:
        """The wanted rows; returns how many rows it passed, wanted or not (fewer than all when past the selection).

        known   the columns of the whole input so far: types that a format without a schema should aim at
        """
        ...


def take(batch: pa.RecordBatch, first_row_id: int, first_place: int, wanted: Wanted) -> Piece | None:
    """The wanted rows of a batch whose first row is `first_row_id`; None if there are none."""
    indices = [i for i in range(batch.num_rows) if wanted(first_row_id + i)]
    if not indices:
        return None
    if len(indices) == batch.num_rows:
        stop = batch.num_rows
        return Piece(range(first_row_id, first_row_id + stop), batch, range(first_place, first_place + stop))
    return Piece([first_row_id + i for i in indices], _take_rows(batch, indices), [first_place + i for i in indices])


def _take_rows(batch: pa.RecordBatch, indices: list[int]) -> pa.RecordBatch:
    if indices[-1] - indices[0] + 1 == len(indices):
        return batch.slice(indices[0], len(indices))
    try:
        return batch.take(pa.array(indices, pa.int64()))
    except pa.ArrowNotImplementedError:  # string and list views in older pyarrow
        return pa.RecordBatch.from_pylist([batch.slice(i, 1).to_pylist()[0] for i in indices], schema=batch.schema)


def refuse_duplicate_columns(name: str, columns: Sequence[str]) -> None:
    """UsageError if a column name occurs twice: neither of the two could be meant."""
    twice = (
        sorted({column for column in columns if list(columns).count(column) > 1})
        if len(set(columns)) != len(columns)
        else []
    )
    if twice:
        raise UsageError(f"{name}: two columns are named `{twice[0]}`", hint="rename one of them")


READ_ERRORS = (OSError, EOFError, ValueError, pa.ArrowException)


@contextmanager
def opening(name: str, what: str) -> Iterator[None]:
    """Faults while opening an input are wrong usage, and name the file."""
    try:
        yield
    except FileNotFoundError as problem:
        raise UsageError(f"{name}: no such file") from problem
    except ImportError as problem:
        raise UsageError(f"{name}: {problem}", hint="install the package that this kind of path needs") from problem
    except READ_ERRORS as problem:
        raise UsageError(f"{name}: cannot be read as {what}: {first_line(problem)}") from problem


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Faults while reading an input that was opened before stop the job, and name the file."""
    try:
        yield
    except FileNotFoundError as problem:
        raise JobError(
            f"{name}: the input file has gone", hint="put it back and run the same command again"
        ) from problem
    except READ_ERRORS as problem:
        raise JobError(f"{name}: reading failed: {first_line(problem)}") from problem


def first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
