"""Arrow IPC: files (Feather V2 is one), streams, and the old Feather V1. Local files are mapped, not loaded."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc

from offgen.readers.source import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Piece,
    opening,
    reading,
    refuse_duplicate_columns,
    take,
)
from offgen.readers.splits import Wanted
from offgen.readers.streams import Location

_FILE_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"


class ArrowSource:
    """Rows of one Arrow file or stream, told apart by the first bytes.

    Memory: a batch as it lies in the file is mapped; if it is compressed, or remote, it is held as a whole.
    """

    def __init__(self, location: Location) -> None:
        self.name = location.name
        self._location = location
        with opening(self.name, "Arrow"):
            with self._file() as file:
                self._magic = file.read(len(_FILE_MAGIC))
            with self._file() as file:
                self.schema = self._schema(file).remove_metadata()
            refuse_duplicate_columns(self.name, self.schema.names)
            self.num_rows: int = self._count()

    def count_rows(self) -> int:
        return self.num_rows

    def fingerprint(self) -> dict[str, Any]:
        with opening(self.name, "Arrow"):
            return {**self._location.fingerprint(), "rows": self.num_rows}

    def pieces(self, first_row_id: int, wanted: Wanted, known: pa.Schema) -> Generator[Piece, None, int]:
        passed = 0
        if not wanted.any_in(first_row_id, first_row_id + self.num_rows):
            return self.num_rows
        with reading(self.name), self._file() as file:
            for batch in self._batches(file):
                if wanted.any_in(first_row_id + passed, first_row_id + passed + batch.num_rows):
                    yield from _slices(batch.replace_schema_metadata(None), first_row_id, passed, wanted)
                passed += batch.num_rows
                if wanted.is_past(first_row_id + passed):
                    break
        return passed

    @contextmanager
    def _file(self) -> Iterator[Any]:
        if self._location.filesystem is None and self._location.num_bytes() > 0:
            with pa.memory_map(self._location.path) as file:
                yield file
        else:
            with self._location.open() as handle:
                yield pa.PythonFile(handle, mode="r")

    def _schema(self, file: Any) -> pa.Schema:
        if self._magic.startswith(_FEATHER_V1_MAGIC):
            return pyarrow.feather.read_table(file).schema
        if self._magic == _FILE_MAGIC:
            return pa.ipc.open_file(file).schema
        return pa.ipc.open_stream(file).schema

    def _batches(self, file: Any, options: pa.ipc.IpcReadOptions | None = None) -> Iterator[pa.RecordBatch]:
        if self._magic.startswith(_FEATHER_V1_MAGIC):
            yield from pyarrow.feather.read_table(file).to_batches()
        elif self._magic == _FILE_MAGIC:
            reader = pa.ipc.open_file(file, options=options)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
        else:
            yield from pa.ipc.open_stream(file, options=options)

    def _count(self) -> int:
        # one column is enough to count by, and spares decompressing the others; a stream that is cut off shows here
        options = pa.ipc.IpcReadOptions(included_fields=[0]) if len(self.schema) else None
        with self._file() as file:
            return sum(batch.num_rows for batch in self._batches(file, options))


def _slices(batch: pa.RecordBatch, first_row_id: int, place: int, wanted: Wanted) -> Iterator[Piece]:
    row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
    size = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // row_bytes))
    for start in range(0, batch.num_rows, size):
        piece = take(batch.slice(start, size), first_row_id + place + start, place + start, wanted)
        if piece is not None:
            yield piece
