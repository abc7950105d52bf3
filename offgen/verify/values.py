"""Compares the pass-through columns of an output with the input they came from, row by row, both read once.

Only where output rows stand in input order; with `--row-order finish` the keys alone are checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from offgen.columns import conform
from offgen.readers import Input, Selection
from offgen.records import Row
from offgen.verify.ledger import MAX_NAMED
from offgen.writers.finished import FinishedJob, VisibleRows
from offgen.writers.gather import rows_of
from offgen.writers.json_lines import json_lines
from offgen.writers.options import OutputOptions
from offgen.writers.schema import OutputSchema, schema_from_text


class InputValues:
    """Steps through the input as output rows come. Written by `compare` only."""

    def __init__(self, data: Input, selection: Selection, options: OutputOptions, job: FinishedJob) -> None:
        self._schema = OutputSchema(options, data.schema)
        schemas = {summary.schema for summary in job.summaries()}
        self._pass_through = self._schema.widened([schema_from_text(text) for text in sorted(schemas)])
        self._rows: Iterator[Row] = iter(data.rows((), selection=selection, skip=lambda row_id: False))
        self._next: Row | None = next(self._rows, None)
        self._is_off = options.row_order != "input" or options.format == "openai-batch"
        self._last_row_id = -1
        self._changed: dict[int, str] = {}  # row id -> column

    def compare(self, rows: VisibleRows) -> None:
        """Take in output rows; those of rows that the input does not have are left to the ledger."""
        ids = rows.row_ids
        if self._is_off or not len(ids):
            return
        if ids[0] < self._last_row_id or (np.diff(ids) < 0).any():
            self._is_off = True  # not in input order, so something else is wrong and told elsewhere
            return
        self._last_row_id = int(ids[-1])
        found = self._inputs(set(ids.tolist()), int(ids[-1]))
        places = [place for place, row_id in enumerate(ids.tolist()) if row_id in found]
        if not places:
            return
        wanted = _joined([found[int(ids[place])] for place in places], self._schema, self._pass_through)
        if isinstance(rows.columns, pa.RecordBatch):
            self._compare_columns(rows_of(rows.columns, np.asarray(places)), wanted, ids[places])
        elif rows.columns is not None:
            self._compare_lines([rows.columns[place] for place in places], wanted, ids[places])

    def _inputs(self, row_ids: set[int], last: int) -> dict[int, Row]:
        found = {}
        while self._next is not None and self._next.row_id <= last:
            if self._next.row_id in row_ids:
                found[self._next.row_id] = self._next
            self._next = next(self._rows, None)
        return found

    def _compare_columns(self, batch: pa.RecordBatch, wanted: pa.RecordBatch, row_ids: Any) -> None:
        for name, column in zip(wanted.schema.names, wanted.columns, strict=True):
            if name not in batch.schema.names:
                self._changed[int(row_ids[0])] = name
            elif not column.equals(batch.column(name)):
                pairs = zip(row_ids.tolist(), column.to_pylist(), batch.column(name).to_pylist(), strict=True)
                self._note(name, pairs)

    def _compare_lines(self, lines: Sequence[dict[str, Any]], wanted: pa.RecordBatch, row_ids: Any) -> None:
        expected = [json.loads(line) for line in json_lines(wanted)]
        for name in wanted.schema.names:
            values = ((one[name], line.get(name)) for one, line in zip(expected, lines, strict=True))
            self._note(name, ((row_id, *pair) for row_id, pair in zip(row_ids.tolist(), values, strict=True)))

    def _note(self, name: str, pairs: Iterator[Any]) -> None:
        for row_id, before, after in pairs:
            if repr(before) != repr(after):  # so that NaN is like NaN
                self._changed.setdefault(row_id, name)

    def problems(self, name_of: Callable[[int], str]) -> Iterator[str]:
        """What is wrong, as a sentence."""
        if self._changed:
            named = [f"{name_of(row_id)}: `{name}`" for row_id, name in list(self._changed.items())[:MAX_NAMED]]
            more = ", …" if len(self._changed) > MAX_NAMED else ""
            yield f"{len(self._changed)} rows differ from the input: {', '.join(named)}{more}"


def _joined(rows: Sequence[Row], schema: OutputSchema, pass_through: pa.Schema) -> pa.RecordBatch:
    """The pass-through columns of the rows, in their order."""
    pieces, start = [], 0
    while start < len(rows):
        end = start
        while end < len(rows) and rows[end].record is rows[start].record:
            end += 1
        record = rows[start].record
        places, renamed = schema.selected(record.schema)
        indices = np.asarray([row.index for row in rows[start:end]])
        if places:
            chosen = pa.RecordBatch.from_arrays(rows_of(record.select(places), indices).columns, schema=renamed)
            pieces.append(conform(chosen, pass_through))
        start = end
    return pa.concat_batches(pieces) if pieces else pa.RecordBatch.from_arrays([], schema=pa.schema([]))
