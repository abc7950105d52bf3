"""One writer for each file format, and how a typed shard is read back. Knows how bytes lie in a file, not why."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from offgen.errors import UsageError
from offgen.writers.dictionaries import GrowingDictionaries
from offgen.writers.disk import DiskFile
from offgen.writers.json_lines import json_lines

GROUP_ROWS = 65_536  # of a row group: what a reader of one column holds at once
GROUP_BYTES = 64 << 20
_WRITE_BYTES = 1 << 20  # of text written at once


class RowWriter(Protocol):
    """Writes batches to an open file; each batch becomes one row group where the format has such."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> None:
        """Write what ends the file. The file stays open."""


class ParquetWriter:
    def __init__(self, file: DiskFile, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", compression_level=1)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, row_group_size=max(1, batch.num_rows))

    def finish(self) -> None:
        self._writer.close()


class ArrowWriter:
    """The IPC file format, uncompressed, so that it can be memory-mapped by anything."""

    def __init__(self, file: DiskFile, schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._dictionaries = GrowingDictionaries()
        self._writer = pa.ipc.new_file(file, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(self._dictionaries.unify(batch))

    def finish(self) -> None:
        self._writer.close()


class KeptWriter:
    """The IPC stream format, for shards in the state folder: any type, any dictionary."""

    def __init__(self, file: DiskFile, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_stream(file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()


class LinesWriter:
    """Text, a line for each row, compressed or not. The bytes depend on the rows alone."""

    def __init__(
        self, file: DiskFile, compression: str, lines_of: Callable[[pa.RecordBatch], Iterable[str]] = json_lines
    ) -> None:
        self._file = file
        self._lines_of = lines_of
        self._compressor = _compressor(compression)

    def write(self, batch: pa.RecordBatch) -> None:
        lines: list[str] = []
        size = 0
        for line in self._lines_of(batch):
            lines.append(line)
            size += len(line)
            if size >= _WRITE_BYTES:
                self._put(lines)
                lines, size = [], 0
        self._put(lines)

    def _put(self, lines: list[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode("utf-8")
        if self._compressor is not None:
            data = self._compressor.compress(data)
        if data:
            self._file.write(data)

    def finish(self) -> None:
        if self._compressor is not None:
            self._file.write(self._compressor.flush())


def _compressor(compression: str) -> Any:
    if compression == "gz":
        return zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # a gzip head without a time
    if compression == "zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).compressobj()
    return None


def open_writer(
    file: DiskFile, file_format: str, schema: pa.Schema, *, compression: str = "", lines_of: Any = None
) -> RowWriter:
    """The writer of a visible file. `lines_of` makes the lines of openai-batch."""
    if file_format == "parquet":
        return ParquetWriter(file, schema)
    if file_format == "arrow":
        return ArrowWriter(file, schema)
    return LinesWriter(file, compression, json_lines if lines_of is None else lines_of)


def typed_schema(path: Path) -> pa.Schema:
    """The schema of a Parquet or Arrow shard, as it was given to its writer."""
    if path.suffix == ".parquet":
        return _without_field_ids(pq.read_schema(path))
    with pa.memory_map(str(path)) as source, _open_arrow(source) as reader:
        return reader.schema


def read_typed(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a Parquet or Arrow shard, in order, one row group at a time."""
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            schema = _without_field_ids(file.schema_arrow)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group).combine_chunks()
                for batch in table.to_batches():
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        return
    with pa.memory_map(str(path)) as source, _open_arrow(source) as reader:
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from reader


def _open_arrow(source: Any) -> Any:
    """A reader of the file format, or else of the stream format."""
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)


def _without_field_ids(schema: pa.Schema) -> pa.Schema:
    """Without what Parquet adds to each field, nested ones too."""
    return pa.schema([_plain_field(field) for field in schema], metadata=schema.metadata)


def _plain_field(field: pa.Field) -> pa.Field:
    kept = {key: value for key, value in (field.metadata or {}).items() if key != b"PARQUET:field_id"}
    return pa.field(field.name, _plain_type(field.type), field.nullable, kept or None)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    for is_kind, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_kind(kind):
            return make(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    return kind


def check_storable(file_format: str, schema: pa.Schema) -> None:
    """Raise UsageError if the format has no place for a column's type."""
    if file_format != "parquet":
        return
    for field in schema:
        try:
            with pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])):
                pass
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as problem:
            hint = f"--drop-columns {field.name}, or write .arrow or .jsonl"
            raise UsageError(f"column `{field.name}`: Parquet cannot hold {field.type}", hint=hint) from problem
