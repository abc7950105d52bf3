"""From SRC to DST: pieces of input, shaped if asked, into the sink of the target, then one rename.

A target with one schema for all its rows starts with the schema known so far. Where a later row widens it, the rest is
read for its schema alone, and the writing starts over with the final one.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from offgen.columns import conform, is_json_text, unify
from offgen.convert import shapes
from offgen.convert.hf_folder import HfFolder
from offgen.convert.sinks import ByteSink, Compressed, CsvSink, Gathered, JsonlSink, Sink
from offgen.convert.target import Target, find_target
from offgen.errors import JobError
from offgen.json_text import json_values
from offgen.readers import Input, Selection, open_input
from offgen.readers.json_columns import ColumnBuilder
from offgen.readers.source import Piece
from offgen.writers.disk import Disk, temporary_of
from offgen.writers.formats import check_storable, open_writer


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    input_format: str | None = None
    output_format: str | None = None
    subset: str | None = None
    split: str | None = None
    skip: int = 0
    limit: int | None = None
    columns: tuple[str, ...] = ()  # empty: all
    drop_columns: tuple[str, ...] = ()
    model: str | None = None  # named in OpenAI batch lines
    overwrite: bool = False
    skip_bad_rows: bool = False


@dataclass(frozen=True, slots=True)
class Converted:
    num_rows: int  # written
    num_bad_rows: int  # left out, with skip_bad_rows


class _SchemaGrew(Exception):
    """A row did not fit the schema that writing began with. Carries the schema of all rows."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema


def convert(src: str, dst: str, options: ConvertOptions) -> Converted:
    """Turn one dataset into another.

    Raises UsageError for what cannot be opened or may not be replaced, JobError for a row that cannot be read (naming
    file and line) and for disk faults; DST is then as it was.
    """
    target = find_target(dst, options.output_format, overwrite=options.overwrite)
    with tempfile.TemporaryDirectory(prefix="offgen-") as spool:
        source = open_input(
            [src],
            input_format=options.input_format,
            subset=options.subset,
            split=options.split,
            spool_dir=Path(spool) if src == "-" and not target.is_stdout else None,
        )
        rows = _Rows(source, target, options)
        if target.is_stdout:
            return rows.write(JsonlSink(sys.stdout.buffer))
        schema = rows.first_schema()
        while True:
            try:
                with _placed(target) as place:
                    return _write(rows, target, place, schema)
            except _SchemaGrew as grown:
                schema = grown.schema


def _write(rows: _Rows, target: Target, place: Path, schema: pa.Schema) -> Converted:
    if target.format == "hf-dataset":
        place.mkdir()
        return _fill(HfFolder(place, schema).sink, rows)
    with Disk().create(place) as file:
        sink: ByteSink = Compressed(file, target.compression) if target.compression else file
        converted = _fill(_file_sink(target, sink, schema), rows)
        if isinstance(sink, Compressed):
            sink.finish()
        file.sync()
    return converted


def _fill(sink: Sink, rows: _Rows) -> Converted:
    try:
        return rows.write(sink)
    except BaseException:
        with suppress(Exception):
            sink.abandon()
        raise


def _file_sink(target: Target, sink: Any, schema: pa.Schema) -> Sink:
    if target.format == "jsonl":
        return JsonlSink(sink)
    if target.format == "csv":
        return CsvSink(sink, schema)
    check_storable(target.format, schema)
    writer = open_writer(sink, target.format, schema)
    return Gathered(writer.write, writer.finish, schema)


@contextmanager
def _placed(target: Target) -> Iterator[Path]:
    """A temporary name beside the target, which becomes the target if all goes well, and is removed if not."""
    place = temporary_of(target.path)
    _remove(place)
    try:
        yield place
        _rename(place, target.path)
    except OSError as problem:
        raise JobError(f"{target.path}: {problem.strerror or problem}") from problem
    finally:
        with suppress(OSError):
            _remove(place)


def _rename(place: Path, target: Path) -> None:
    if place.is_dir() and target.is_dir():  # a folder is replaced in two steps: no file system does it in one
        old = target.with_name(f".{target.name}.old")
        _remove(old)
        target.rename(old)
        place.rename(target)
        _remove(old)
    else:
        Disk().rename(place, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class _Rows:
    """The rows of one conversion, in the shape that is asked for."""

    def __init__(self, source: Input, target: Target, options: ConvertOptions) -> None:
        self._source = source
        self._options = options
        self._selection = Selection(options.skip, options.limit)
        self._from_results = options.input_format is None and _is_results(source)
        self._shape = self._choose_shape(target.shape)

    def first_schema(self) -> pa.Schema:
        if self._shape is None:
            return pa.schema([self._source.schema.field(name) for name in self._kept(self._source.schema.names)])
        return next(self._batches(), pa.record_batch({})).schema

    def write(self, sink: Sink) -> Converted:
        num_rows = num_bad_rows = 0
        builder = ColumnBuilder(pa.schema([]))
        for name, piece, num_bad in self._pieces():
            num_bad_rows += num_bad
            records = self._records(name, piece)
            if records is not None and isinstance(sink, JsonlSink):
                sink.write_records(records)
                num_rows += len(records)
                continue
            batch = self._batch(piece, records, builder)
            if sink.schema is not None and not batch.schema.equals(sink.schema, check_metadata=True):
                schema = unify(sink.schema, batch.schema)
                if not schema.equals(sink.schema, check_metadata=True):
                    raise _SchemaGrew(self._whole_schema(schema))
                batch = conform(batch, schema)
            sink.write(batch)
            num_rows += batch.num_rows
        sink.finish()
        return Converted(num_rows, num_bad_rows)

    def _whole_schema(self, schema: pa.Schema) -> pa.Schema:
        for batch in self._batches():
            schema = unify(schema, batch.schema)
        return schema

    def _batches(self) -> Iterator[pa.RecordBatch]:
        builder = ColumnBuilder(pa.schema([]))
        for name, piece, _ in self._pieces():
            yield self._batch(piece, self._records(name, piece), builder)

    def _pieces(self) -> Iterator[tuple[str, Piece, int]]:
        """(source name, good rows, how many bad ones were left out)."""
        for name, piece in self._source.pieces(selection=self._selection):
            yield name, (self._good_rows(name, piece) if piece.errors else piece), len(piece.errors)

    def _batch(self, piece: Piece, records: list[dict[str, Any]] | None, builder: ColumnBuilder) -> pa.RecordBatch:
        batch = piece.batch if self._shape is None or records is None else builder.build(records)
        kept = self._kept(batch.schema.names)
        return batch if kept == batch.schema.names else batch.select(kept)

    def _records(self, name: str, piece: Piece) -> list[dict[str, Any]] | None:
        """The rows as objects in the shape asked for; None for rows that are not objects anyway."""
        objects = piece.objects
        if self._shape is not None:
            objects = self._shaped(name, piece)
        return None if objects is None else [{key: row[key] for key in self._kept(row)} for row in objects]

    def _kept(self, names: Iterable[str]) -> list[str]:
        chosen = self._options.columns
        return [name for name in names if (not chosen or name in chosen) and name not in self._options.drop_columns]

    def _good_rows(self, name: str, piece: Piece) -> Piece:
        index, error = next(iter(piece.errors.items()))
        if not self._options.skip_bad_rows:
            raise JobError(f"{name}:{piece.places[index]}: {error}", hint="--skip-bad-rows leaves such rows out")
        good = [i for i in range(len(piece.row_ids)) if i not in piece.errors]
        return Piece(
            [piece.row_ids[i] for i in good],
            piece.batch.take(pa.array(good, pa.int64())),
            [piece.places[i] for i in good],
            None if piece.objects is None else [piece.objects[i] for i in good],
        )

    def _shaped(self, name: str, piece: Piece) -> list[dict[str, Any]]:
        assert self._shape is not None
        objects = _records_of(piece.batch) if piece.objects is None else piece.objects
        records: list[dict[str, Any]] = []
        for row_id, place, record in zip(piece.row_ids, piece.places, objects, strict=True):
            try:
                records.extend(self._shape(record, row_id))
            except (ValueError, AttributeError, TypeError) as problem:
                raise JobError(f"{name}:{place}: {problem}") from problem
        return records

    def _choose_shape(self, shape: str) -> shapes.Shape | None:
        model = self._options.model
        known: dict[str, Callable[..., Any]] = {
            "openai-requests": partial(shapes.to_request, model=model),
            "openai-results": partial(shapes.to_result, model=model),
            "messages": shapes.to_messages,
        }
        if shape == "openai-batch":  # completions are results, as `offgen run` writes them; prompts are requests
            has_completions = self._from_results or "completion" in self._source.schema.names
            shape = "openai-results" if has_completions else "openai-requests"
        if not shape:
            return shapes.from_result if self._from_results else None
        if not self._from_results:
            return known[shape]
        last = known[shape]
        return lambda record, row_id: (out for row in shapes.from_result(record, row_id) for out in last(row, row_id))


def _records_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as objects of JSON values; a column of JSON text as the values it holds."""
    columns: dict[str, list[Any]] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        values = json_values(column)
        if is_json_text(field):
            values = [None if value is None else json.loads(value) for value in values]
        columns[field.name] = values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _is_results(source: Input) -> bool:
    names = set(source.schema.names)
    return {"custom_id", "response"} <= names and not source.is_openai_batch
