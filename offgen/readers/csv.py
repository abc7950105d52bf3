"""CSV with a header line. Types are those pyarrow infers over the whole file; a malformed row is a row with an error.

Rows are cut by Python's csv module (which tells lines and bad rows apart), values converted by pyarrow's, by blocks.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from offgen.readers.lines import split_lines
from offgen.readers.source import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Piece,
    opening,
    reading,
    refuse_duplicate_columns,
)
from offgen.readers.splits import Wanted
from offgen.readers.streams import Location

_INFER_ROWS = 16_384

# (line, fields, what is wrong with the row or "")
_Record = tuple[int, Sequence[str], str]


class CsvSource:
    """Rows of one CSV file, plain or compressed. Opening reads it once, to infer types as pyarrow does."""

    def __init__(self, location: Location, compression: str) -> None:
        self.name = location.name
        self._location = location
        self._compression = compression
        with opening(self.name, "CSV"):
            self._header = self._read_header()
            refuse_duplicate_columns(self.name, self._header)
            self.schema, self.num_rows = self._infer()

    def count_rows(self) -> int:
        return self.num_rows

    def fingerprint(self) -> dict[str, Any]:
        with opening(self.name, "CSV"):
            return self._location.fingerprint()

    def pieces(self, first_row_id: int, wanted: Wanted, known: pa.Schema) -> Generator[Piece, None, int]:
        passed = num_bytes = 0
        rows: list[tuple[int, _Record]] = []
        with reading(self.name):
            for record in self._records():
                row_id = first_row_id + passed
                if wanted.is_past(row_id):
                    break
                passed += 1
                if wanted(row_id):
                    rows.append((row_id, record))
                    num_bytes += sum(map(len, record[1]))
                    if len(rows) >= MAX_BATCH_ROWS or num_bytes >= MAX_BATCH_BYTES:
                        yield self._piece(rows)
                        rows, num_bytes = [], 0
            if rows:
                yield self._piece(rows)
        return passed

    def _piece(self, rows: list[tuple[int, _Record]]) -> Piece:
        good = [fields for _, (_, fields, error) in rows if not error]
        table = self._convert(good, self.schema)
        errors = {i: error for i, (_, (_, _, error)) in enumerate(rows) if error}
        if errors:
            places = iter(range(len(good)))
            table = table.take(pa.array([None if error else next(places) for _, (_, _, error) in rows], pa.int64()))
        batch = table.combine_chunks().to_batches(max_chunksize=len(rows))[0]
        return Piece([row_id for row_id, _ in rows], batch, [record[0] for _, record in rows], None, errors)

    def _read_header(self) -> list[str]:
        for _, fields in _parse(self._lines({})):
            return [] if isinstance(fields, csv.Error) else list(fields)
        return []

    def _records(self) -> Iterator[_Record]:
        """The rows after the header."""
        bad_lines: dict[int, str] = {}
        is_header = True
        last_line = 0
        for line, fields in _parse(self._lines(bad_lines)):
            first_line, last_line = last_line + 1, line
            error = next((bad_lines.pop(i) for i in range(first_line, line + 1) if i in bad_lines), "")
            if is_header:
                is_header = False
            elif isinstance(fields, csv.Error):
                yield line, (), f"not valid CSV: {fields}"
            else:
                if not error and len(fields) != len(self._header):
                    error = f"{len(fields)} fields, but the header has {len(self._header)}"
                yield line, fields, error

    def _lines(self, bad_lines: dict[int, str]) -> Iterator[str]:
        number = 0
        for block in split_lines(self._location.chunks(self._compression)):
            for line in block:
                number += 1
                try:
                    yield line.decode("utf-8") + "\n"
                except UnicodeDecodeError as problem:
                    bad_lines[number] = f"not valid UTF-8 (byte {problem.start + 1})"
                    yield line.decode("utf-8", "replace") + "\n"

    def _infer(self) -> tuple[pa.Schema, int]:
        kinds: list[pa.DataType] = [pa.null()] * len(self._header)
        num_rows = 0
        block: list[Sequence[str]] = []
        for _, fields, error in self._records():
            num_rows += 1
            if not error:
                block.append(fields)
            if len(block) == _INFER_ROWS:
                kinds = [_wider(*pair) for pair in zip(kinds, self._convert(block, None).schema.types, strict=True)]
                block = []
        if block:
            kinds = [_wider(*pair) for pair in zip(kinds, self._convert(block, None).schema.types, strict=True)]
        return pa.schema(list(zip(self._header, kinds, strict=True))), num_rows

    def _convert(self, rows: Sequence[Sequence[str]], schema: pa.Schema | None) -> pa.Table:
        if not rows:
            return (schema or pa.schema([])).empty_table()
        columns = [pa.array(column, pa.large_string()) for column in zip(*rows, strict=True)]
        sink = pa.BufferOutputStream()
        quote_all = pyarrow.csv.WriteOptions(quoting_style="all_valid")
        pyarrow.csv.write_csv(pa.table(columns, names=self._header), sink, quote_all)
        text = sink.getvalue()
        return pyarrow.csv.read_csv(
            pa.BufferReader(text),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=max(1 << 20, text.size)),
            pyarrow.csv.ParseOptions(newlines_in_values=True),
            pyarrow.csv.ConvertOptions(column_types=schema),
        )


def _parse(lines: Iterator[str]) -> Iterator[tuple[int, Sequence[str] | csv.Error]]:
    """(line number of its last line, fields) for each record; blank lines are none."""
    csv.field_size_limit(sys.maxsize)  # the module's own default of 128 KiB would refuse long prompts
    reader = csv.reader(lines)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            yield reader.line_num, problem
            continue
        if fields:
            yield reader.line_num, fields


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """What pyarrow would have inferred over both blocks."""
    if a.equals(b) or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    naive = (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"))  # from narrow to wide
    if a in naive and b in naive:
        return max(a, b, key=naive.index)
    return pa.string()
