"""Parquet files, row group by row group in small batches. Knows footers; knows no prompt."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offgen.columns import WIDE_INTS, mark
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

_BUFFER_BYTES = 1 << 20  # column chunks are streamed through buffers of this size, never loaded whole
_MAX_EXACT = 1 << 53


class ParquetSource:
    """Rows of one Parquet file.

    Memory: one batch (about 1,024 rows or 4 MiB, by the footer's sizes) and, in each column, the page it is cut from.
    """

    def __init__(self, location: Location) -> None:
        self.name = location.name
        self._location = location
        with opening(self.name, "Parquet"), self._file() as file:
            schema = file.schema_arrow.remove_metadata()
            self._metadata = file.metadata
        refuse_duplicate_columns(self.name, schema.names)
        self.schema = pa.schema([self._with_mark(field) for field in schema])
        self.num_rows: int = self._metadata.num_rows

    def count_rows(self) -> int:
        return self.num_rows

    def fingerprint(self) -> dict[str, Any]:
        with opening(self.name, "Parquet"):
            return {**self._location.fingerprint(), "rows": self.num_rows}

    def pieces(self, first_row_id: int, wanted: Wanted, known: pa.Schema) -> Generator[Piece, None, int]:
        passed = 0
        if not wanted.any_in(first_row_id, first_row_id + self.num_rows):
            return self.num_rows
        with reading(self.name), self._file() as file:
            if not file.metadata.equals(self._metadata):
                raise ValueError("the file has changed since the start")
            for group in range(self._metadata.num_row_groups):
                num_rows = self._metadata.row_group(group).num_rows
                if wanted.any_in(first_row_id + passed, first_row_id + passed + num_rows):
                    yield from self._group(file, group, first_row_id, passed, wanted)
                passed += num_rows
                if wanted.is_past(first_row_id + passed):
                    break
        return passed

    @contextmanager
    def _file(self) -> Iterator[pq.ParquetFile]:
        if self._location.filesystem is None:
            with pq.ParquetFile(self._location.path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
                yield file
        else:
            with self._location.open() as handle, pq.ParquetFile(handle, buffer_size=_BUFFER_BYTES) as file:
                yield file

    def _group(
        self, file: pq.ParquetFile, group: int, first_row_id: int, place: int, wanted: Wanted
    ) -> Generator[Piece, None, None]:
        size = self._batch_rows(group)
        for batch in file.iter_batches(batch_size=size, row_groups=[group], use_threads=False):
            batch = batch.cast(self.schema) if not batch.schema.equals(self.schema) else batch
            piece = take(batch, first_row_id + place, place, wanted)
            if piece is not None:
                yield piece
            place += batch.num_rows
            if wanted.is_past(first_row_id + place):
                return

    def _batch_rows(self, group: int) -> int:
        row_group = self._metadata.row_group(group)
        row_bytes = max(1, row_group.total_byte_size // max(1, row_group.num_rows))
        return int(max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // row_bytes)))

    def _with_mark(self, field: pa.Field) -> pa.Field:
        """The field, marked if its integers may not fit a double, by the footer: another file may have floats."""
        is_wide = pa.types.is_integer(field.type) and field.type.bit_width == 64 and not self._is_exact(field.name)
        return mark(field, WIDE_INTS) if is_wide else field

    def _is_exact(self, name: str) -> bool:
        for i in range(self._metadata.num_row_groups):
            row_group = self._metadata.row_group(i)
            for j in range(row_group.num_columns):
                chunk = row_group.column(j)
                if chunk.path_in_schema != name:
                    continue
                statistics = chunk.statistics
                if chunk.num_values == 0 or (statistics is not None and statistics.null_count == chunk.num_values):
                    continue
                if statistics is None or not statistics.has_min_max:
                    return False
                if statistics.min < -_MAX_EXACT or statistics.max > _MAX_EXACT:
                    return False
        return True
