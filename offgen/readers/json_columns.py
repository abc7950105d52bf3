"""JSON values into Arrow columns, batch by batch, with types that only ever widen. Knows no file.

Strings stay strings, whatever they look like. A column becomes JSON text when its types are mixed, and also for
integers beyond int64 (uint64 if it starts with such), objects without a key, and objects used as dictionaries (more
than 256 keys).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from offgen.columns import WIDE_INTS, conform_column, is_json_text, json_text_field, mark, unify_fields
from offgen.json_text import dumps

_MAX_EXACT = 1 << 53  # a double holds all integers up to here
_MAX_STRUCT_FIELDS = 256
_MAX_TYPE_DEPTH = 30  # Arrow's files stop at 64 levels, and a list of structs takes two
_TYPE_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
_SURROGATES = re.compile("[\ud800-\udfff]")

Record = Mapping[str, Any]


class ColumnBuilder:
    """Builds record batches out of JSON objects. `schema` is what is known so far; each batch has all of it."""

    def __init__(self, schema: pa.Schema) -> None:
        self._fields: dict[str, pa.Field] = {field.name: field for field in schema}
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def build(self, records: Sequence[Record]) -> pa.RecordBatch:
        """One batch of these records; a key seen for the first time is a new column."""
        known = self._fields.keys()
        for record in records:
            if not record.keys() <= known:
                for key in record:
                    self._fields.setdefault(key, pa.field(key, pa.null()))
        columns = []
        for name, field in list(self._fields.items()):
            values = [record.get(name) for record in records]
            seen, column = _column(name, values, field)
            if not seen.equals(field, check_metadata=True):
                field = unify_fields(field, seen)
                if _is_awkward(field.type):
                    field = json_text_field(name)
                self._fields[name] = field
            columns.append(_fit(values, column, seen, field))
        schema = pa.schema(list(self._fields.values()))
        if not schema.equals(self._schema, check_metadata=True):
            self._schema = schema
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(name: str, values: list[Any], known: pa.Field) -> tuple[pa.Field, pa.Array]:
    """The values of one batch in the narrowest type that holds them."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    if not kinds:
        return pa.field(name, pa.null()), pa.nulls(len(values))
    if is_json_text(known):
        return _json_text(name, values)
    try:
        if kinds == {str}:
            column = pa.array(values, pa.string())
            if isinstance(column, pa.ChunkedArray):  # more than 2 GiB in one batch
                column = pa.array(values, pa.large_string())
            return pa.field(name, column.type), column
        if kinds == {int}:
            return _integers(name, values, known)
        if kinds == {bool}:
            return pa.field(name, pa.bool_()), pa.array(values, pa.bool_())
        if kinds <= {int, float}:
            return pa.field(name, pa.float64()), pa.array(values, pa.float64())  # refuses what is not exact
        if kinds in ({list}, {dict}):
            return _nested(name, values)
    except _TYPE_ERRORS:
        pass
    return _json_text(name, values)


def _integers(name: str, values: list[Any], known: pa.Field) -> tuple[pa.Field, pa.Array]:
    kind = known.type if pa.types.is_uint64(known.type) else pa.int64()
    try:
        column = pa.array(values, kind)
    except OverflowError:
        if not pa.types.is_null(known.type):
            raise
        column = pa.array(values, pa.uint64())
    return _marked(pa.field(name, column.type), column), column


def _nested(name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    column = pa.array(values)
    if isinstance(column, pa.ChunkedArray):
        return _json_text(name, values)
    if _has_floats(column.type) and any(_has_boolean_as_float(value, column.type) for value in values):
        return _json_text(name, values)
    return _marked(pa.field(name, column.type), column), column


def _json_text(name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    texts = [None if value is None else dumps(value) for value in values]
    return json_text_field(name), pa.array(texts, pa.string())


def _fit(values: list[Any], column: pa.Array, seen: pa.Field, wider: pa.Field) -> pa.Array:
    if is_json_text(wider) and not is_json_text(seen):
        return _json_text(wider.name, values)[1]  # of the values themselves: no absent key turns into a null
    return conform_column(column, seen, wider)


def _marked(field: pa.Field, column: pa.Array) -> pa.Field:
    return mark(field, WIDE_INTS) if _has_wide_ints(column) else field


def _has_wide_ints(column: pa.Array) -> bool:
    if pa.types.is_integer(column.type):
        ends = pc.min_max(column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return low is not None and (low < -_MAX_EXACT or high > _MAX_EXACT)
    if pa.types.is_list(column.type):
        return _has_wide_ints(column.values)
    if pa.types.is_struct(column.type):
        return any(_has_wide_ints(column.field(i)) for i in range(column.type.num_fields))
    return False


def _has_floats(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def _is_awkward(kind: pa.DataType, depth: int = 0) -> bool:
    """Types that files cannot hold (structs of no field, very deep ones) or should not (dictionaries of many keys)."""
    if pa.types.is_struct(kind) and not 0 < kind.num_fields <= _MAX_STRUCT_FIELDS:
        return True
    return depth > _MAX_TYPE_DEPTH or any(_is_awkward(kind.field(i).type, depth + 1) for i in range(kind.num_fields))


def _has_boolean_as_float(value: Any, kind: pa.DataType) -> bool:
    """Whether a boolean stands where the type says floating point: pyarrow takes [1.5, true] for two doubles."""
    if isinstance(value, bool):
        return bool(pa.types.is_floating(kind))
    if isinstance(value, list):
        return any(_has_boolean_as_float(item, kind.value_type) for item in value)
    if isinstance(value, dict):
        return any(_has_boolean_as_float(item, kind.field(name).type) for name, item in value.items())
    return False


def without_surrogates(value: Any) -> Any:
    """The value with each lone surrogate (JSON's `"\\ud800"`, which no UTF-8 text can hold) replaced by U+FFFD."""
    if isinstance(value, str):
        return _SURROGATES.sub("�", value)
    if isinstance(value, dict):
        return {_SURROGATES.sub("�", key): without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    return value
