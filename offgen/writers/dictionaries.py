"""Dictionary columns in one Arrow file: every batch must use one dictionary, or one that only grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offgen.errors import JobError


class GrowingDictionaries:
    """Re-encodes the top-level dictionary columns of a file's batches so that each dictionary extends the last."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def unify(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not any(pa.types.is_dictionary(field.type) for field in batch.schema):
            return batch
        columns = [
            self._grown(field, column) if pa.types.is_dictionary(field.type) else column
            for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _grown(self, field: pa.Field, column: pa.Array) -> pa.Array:
        known = self._known.get(field.name)
        theirs = column.dictionary
        if known is None:
            known = pc.unique(theirs)
        else:
            fresh = pc.unique(theirs.filter(pc.invert(pc.is_in(theirs, known))))
            known = pa.concat_arrays([known, fresh]) if len(fresh) else known
        self._known[field.name] = known
        places = pc.index_in(theirs, known)
        indices = places.take(column.indices) if len(places) else pa.nulls(len(column), pa.int32())
        try:
            indices = indices.cast(field.type.index_type)
        except pa.ArrowInvalid as problem:
            limit = np.iinfo(field.type.index_type.to_pandas_dtype()).max
            raise JobError(
                f"column `{field.name}`: more than {limit} different values in its dictionary",
                hint="write Parquet or JSONL instead",
            ) from problem
        return pa.DictionaryArray.from_arrays(indices, known, ordered=field.type.ordered)
