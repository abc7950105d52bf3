"""All of INPUT as one sequence of rows. Knows sources; knows no format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from offgen.columns import conform, unify
from offgen.readers.source import Piece, Source
from offgen.readers.splits import Selection, Wanted
from offgen.records import Row, RowError


class Input:
    """Sources one after the other, under one schema, with row ids from 0.

    schema    the columns known before reading; batches of `rows` may have more, or wider ones
    num_rows  None if that takes reading
    is_openai_batch   a source is an OpenAI batch request file: its rows bring a `sampling_params` column
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        schema: pa.Schema,
        constants: Sequence[pa.Table],
        is_openai_batch: bool = False,
    ) -> None:
        self._sources = sources
        self._constants = constants
        self.schema = schema
        self.is_openai_batch = is_openai_batch

    @property
    def num_rows(self) -> int | None:
        counts = [source.num_rows for source in self._sources]
        return None if None in counts else sum(count or 0 for count in counts)

    def count_rows(self) -> int:
        """How many rows there are; may read everything."""
        return sum(source.count_rows() for source in self._sources)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the content, whatever the folder it lies in: file names, sizes, hashes. JSON-able."""
        entries = []
        for source, constants in zip(self._sources, self._constants, strict=True):
            hive = constants.to_pylist()[0] if constants.num_columns else {}
            entries.append({**source.fingerprint(), **({"hive": hive} if hive else {})})
        return {"files": entries}

    def rows(self, needed: Collection[str], *, selection: Selection, skip: Callable[[int], bool]) -> Iterator[Row]:
        """The selected rows that `skip` does not name, in row id order, streaming; only `needed` columns as values."""
        for name, piece in self.pieces(selection=selection, skip=skip):
            yield from _rows_of(name, piece, sorted(needed))

    def pieces(
        self, *, selection: Selection, skip: Callable[[int], bool] = lambda row_id: False
    ) -> Iterator[tuple[str, Piece]]:
        """The same in batches, each with the name of its source."""
        wanted = Wanted(selection, skip)
        known = self.schema
        first_row_id = 0
        for source, constants in zip(self._sources, self._constants, strict=True):
            if wanted.is_past(first_row_id):
                return
            if source.num_rows is not None and not wanted.any_in(first_row_id, first_row_id + source.num_rows):
                first_row_id += source.num_rows
                continue
            pieces = source.pieces(first_row_id, wanted, known)
            while True:
                try:
                    piece = next(pieces)
                except StopIteration as end:
                    first_row_id += end.value
                    break
                piece = _with_constants(piece, constants)
                known = unify(known, piece.batch.schema)
                yield source.name, _conformed(piece, known)


def _conformed(piece: Piece, schema: pa.Schema) -> Piece:
    if piece.batch.schema.equals(schema, check_metadata=True):
        return piece
    return Piece(piece.row_ids, conform(piece.batch, schema), piece.places, piece.objects, piece.errors)


def _with_constants(piece: Piece, constants: pa.Table) -> Piece:
    """The piece with its file's hive columns; they stand in for columns of the same name, as in pyarrow."""
    batch, objects = piece.batch, piece.objects
    for field in constants.schema:
        value = constants.column(field.name)[0]
        index, column = batch.schema.get_field_index(field.name), pa.repeat(value, batch.num_rows)
        batch = batch.append_column(field, column) if index < 0 else batch.set_column(index, field, column)
        if objects is not None:
            objects = [{**record, field.name: value.as_py()} for record in objects]
    return piece if batch is piece.batch else Piece(piece.row_ids, batch, piece.places, objects, piece.errors)


def _rows_of(name: str, piece: Piece, needed: Sequence[str]) -> Iterator[Row]:
    values = _values(piece, needed)
    errors = piece.errors
    batch = piece.batch
    for index, (row_id, place) in enumerate(zip(piece.row_ids, piece.places, strict=True)):
        where = f"{name}:{place}"
        error = RowError("bad_row", f"{where}: {errors[index]}") if index in errors else None
        yield Row(row_id, batch, index, values[index], where, error)


def _values(piece: Piece, needed: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    if piece.objects is not None:
        return [{name: record.get(name) for name in needed} for record in piece.objects]
    present = [name for name in needed if name in piece.batch.schema.names]
    absent = dict.fromkeys(name for name in needed if name not in present)
    if not present:
        return [absent] * len(piece.row_ids)
    columns = [piece.batch.column(name).to_pylist() for name in present]
    return [{**absent, **dict(zip(present, row, strict=True))} for row in zip(*columns, strict=True)]
