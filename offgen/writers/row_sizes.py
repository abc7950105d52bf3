"""How many bytes each row of a batch holds: what row groups are cut by. Depends on the values alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNKNOWN_BYTES = 16


def row_sizes(batch: pa.RecordBatch) -> Any:
    """int64, one for each row."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += _sizes(column)
    return sizes


def _sizes(column: pa.Array) -> Any:
    kind = column.type
    if pa.types.is_struct(kind):
        sizes = np.ones(len(column), np.int64)
        for child in column.flatten():
            sizes += _sizes(child)
        return sizes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _list_sizes(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return _lengths(pc.binary_length(column)) + 4
    if pa.types.is_large_binary(kind):
        return _lengths(pc.binary_length(column)) + 4
    try:
        return np.full(len(column), max(1, kind.bit_width // 8), np.int64)
    except ValueError:  # no fixed width: views and run-end encodings share one figure
        return np.full(len(column), _UNKNOWN_BYTES + column.nbytes // max(1, len(column)), np.int64)


def _list_sizes(column: pa.Array) -> Any:
    if pa.types.is_map(column.type):
        offsets = np.asarray(column.offsets, np.int64)
        items = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
        sizes = np.concatenate([[0], np.cumsum(_sizes(items.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))))])
        ends = sizes[offsets - offsets[0]]
        return np.diff(ends) + 4
    lengths = _lengths(column.value_lengths())
    ends = np.concatenate([[0], np.cumsum(_sizes(column.flatten()))])
    places = np.cumsum(lengths)
    return ends[places] - ends[places - lengths] + 4


def _lengths(values: pa.Array) -> Any:
    return values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
