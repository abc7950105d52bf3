"""Output rows as JSON lines, column by column: the texts of a whole column at once, then the lines.

What a value looks like is said in json_text; the common types are done here without a Python object tree for each row.
"""

from __future__ import annotations

import json.encoder
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from offgen.json_text import dumps, json_values

quote: Callable[[str], str] = json.encoder.encode_basestring  # the C version where there is one
_NULL = "null"
_SLICE_BYTES = 4 << 20  # of Arrow data turned into texts at once


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """One JSON object for each row, without line ends."""
    step = max(1, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, step):
        columns = batch.slice(start, step).columns
        yield from _objects(batch.schema.names, [json_texts(column) for column in columns])


def _objects(names: Sequence[str], texts: Sequence[Sequence[str]]) -> list[str]:
    template = "{" + ", ".join(quote(name).replace("%", "%%") + ": %s" for name in names) + "}"
    return [template % values for values in zip(*texts, strict=True)]


def json_texts(column: pa.Array) -> list[str]:
    """The JSON of each value; `null` for nulls."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [_NULL if value is None else quote(value) for value in _values(column)]
    if pa.types.is_integer(kind):
        if column.null_count == 0:
            return list(map(str, column.to_numpy(zero_copy_only=False).tolist()))
        return [_NULL if value is None else str(value) for value in column.to_pylist()]
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_boolean(kind):
        return [_NULL if value is None else "true" if value else "false" for value in column.to_pylist()]
    if pa.types.is_null(kind):
        return [_NULL] * len(column)
    if pa.types.is_struct(kind) and kind.num_fields:
        return _structs(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column)
    return [dumps(value) for value in json_values(column)]


def _values(column: pa.Array) -> list[Any]:
    return list(column.to_numpy(zero_copy_only=False).tolist())


def _floats(column: pa.Array) -> list[str]:
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)  # nulls become NaN, and both become null
    if np.isfinite(values).all():
        return list(map(repr, values.tolist()))
    return [repr(value) if math.isfinite(value) else _NULL for value in values.tolist()]


def _structs(column: pa.Array) -> list[str]:
    names = [field.name for field in column.type]
    texts = _objects(names, [json_texts(child) for child in column.flatten()])
    return _with_nulls(column, texts)


def _lists(column: pa.Array) -> list[str]:
    items = json_texts(column.flatten())
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths).tolist()
    texts, start = [], 0
    for end in ends:
        texts.append("[" + ", ".join(items[start:end]) + "]")
        start = end
    return _with_nulls(column, texts)


def _with_nulls(column: pa.Array, texts: list[str]) -> list[str]:
    if column.null_count == 0:
        return texts
    is_valid = column.is_valid().to_pylist()
    return [text if valid else _NULL for text, valid in zip(texts, is_valid, strict=True)]
