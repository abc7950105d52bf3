"""Batches into one file: a sink for each format. Knows files; knows neither where rows come from nor renaming."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv

from offgen.columns import is_json_text
from offgen.json_text import dumps, encode_array, json_values
from offgen.writers.json_lines import json_texts

GROUP_ROWS = 65_536  # of a Parquet row group or Arrow batch
GROUP_BYTES = 64 << 20


class ByteSink(Protocol):
    def write(self, data: bytes, /) -> Any: ...


class Sink(Protocol):
    """Takes the rows of one output, in order. `schema` is None if each batch may have its own."""

    schema: pa.Schema | None

    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> None: ...

    def abandon(self) -> None:
        """End without a whole file: release what would complain once the file is closed."""
        ...


class Gathered:
    """Small batches into groups of a sensible size, for formats where a batch is a group."""

    def __init__(
        self, write_group: Callable[[pa.RecordBatch], None], finish: Callable[[], None], schema: pa.Schema
    ) -> None:
        self.schema: pa.Schema | None = schema
        self._write_group = write_group
        self._finish = finish
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._finish()

    def abandon(self) -> None:
        self._finish()

    def _flush(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._batches, schema=self.schema)
            for batch in table.combine_chunks().to_batches():
                self._write_group(batch)
        self._batches, self._rows, self._bytes = [], 0, 0


class JsonlSink:
    """JSON lines. A column of JSON text is written as the JSON it holds, so that mixed values are what they were."""

    def __init__(self, sink: ByteSink) -> None:
        self.schema: pa.Schema | None = None
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        names = [dumps(name) for name in batch.schema.names]
        columns = [_json_texts(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
        rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
        lines = ["{" + ", ".join(map("%s: %s".__mod__, zip(names, row, strict=True))) + "}\n" for row in rows]
        self._sink.write("".join(lines).encode("utf-8"))

    def write_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Rows that are objects already, as they are: no absent key becomes a null."""
        self._sink.write("".join(f"{dumps(record)}\n" for record in records).encode("utf-8"))

    def finish(self) -> None:
        """Lines have no end."""

    def abandon(self) -> None:
        """Nothing is held."""


def _json_texts(column: pa.Array, field: pa.Field) -> list[str]:
    if is_json_text(field):
        return ["null" if value is None else value for value in column.to_pylist()]
    return json_texts(column)


class CsvSink:
    """CSV with a header. Lists, structs, maps and bytes are JSON text; null is nothing, an empty text is `""`."""

    def __init__(self, sink: ByteSink, schema: pa.Schema) -> None:
        self.schema: pa.Schema | None = schema
        self._flat = pa.schema([pa.field(field.name, _flat_type(field.type)) for field in schema])
        self._writer = pyarrow.csv.CSVWriter(pa.PythonFile(sink, mode="w"), self._flat) if len(schema) else None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is not None:
            columns = [_flat(column, kind) for column, kind in zip(batch.columns, self._flat.types, strict=True)]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._flat))

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        self.finish()


def _flat_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _flat_type(kind.value_type)
    as_they_are = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_timestamp,
        pa.types.is_date,
    )
    if pa.types.is_float16(kind):
        return pa.float32()
    return kind if any(test(kind) for test in as_they_are) else pa.string()


def _flat(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if pa.types.is_nested(column.type) or not kind.equals(pa.string()):
        return encode_array(column) if pa.types.is_nested(column.type) else column.cast(kind)
    return pa.array(json_values(column), pa.string())


class Compressed:
    """A byte sink that compresses into another."""

    def __init__(self, sink: ByteSink, suffix: str) -> None:
        self._sink = sink
        self._compressor = _compressor(suffix)

    def write(self, data: bytes, /) -> int:
        if out := self._compressor.compress(bytes(data)):
            self._sink.write(out)
        return len(data)

    def finish(self) -> None:
        self._sink.write(self._compressor.flush())

    # what pa.PythonFile asks of a file
    closed = False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is held back here but by the compressor."""

    def close(self) -> None:
        """The owner finishes."""


def _compressor(suffix: str) -> Any:
    if suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).compressobj()
    if suffix == ".bz2":
        return bz2.BZ2Compressor()
    if suffix == ".xz":
        return lzma.LZMACompressor()
    return zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # a gzip head without a time
