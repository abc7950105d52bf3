"""How the columns of several pieces of one dataset become one schema: what widens to what, and what becomes JSON text.

Pure pyarrow. Knows no file format. Readers use it to join files, writers to rewrite parts whose schema was narrower.

    null            widens to anything
    integers        the narrowest integer that holds both
    integer, float  double where exact, else JSON text (see WIDE_INTS)
    lists, structs  element by element; a struct is the union of its fields
    anything else   JSON text: each value is replaced by its JSON, so that 1 is `1` and "x" is `"x"`

A column is JSON text as a whole: once its field carries the mark `JSON_TEXT`, every part of it is encoded. Nulls stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from offgen.json_text import encode_array, is_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK = b"offgen:column"
JSON_TEXT = b"json"  # the strings of this column are JSON texts
WIDE_INTS = b"wide_ints"  # holds integers that a double cannot: beside floats the column must be JSON text

_Data = TypeVar("_Data", pa.Table, pa.RecordBatch)


class _Mixed(Exception):
    """No type holds both."""


def mark(field: pa.Field, kind: bytes) -> pa.Field:
    """The field with its column marked JSON_TEXT or WIDE_INTS."""
    return field.with_metadata({**(field.metadata or {}), _MARK: kind})


def is_json_text(field: pa.Field) -> bool:
    """Whether the column's strings are JSON texts of values of mixed types."""
    return (field.metadata or {}).get(_MARK) == JSON_TEXT


def _is_wide(field: pa.Field) -> bool:
    return (field.metadata or {}).get(_MARK) == WIDE_INTS


def json_text_field(name: str, metadata: dict[bytes, bytes] | None = None) -> pa.Field:
    return mark(pa.field(name, pa.string(), metadata=metadata), JSON_TEXT)


def unify(a: pa.Schema, b: pa.Schema) -> pa.Schema:
    """The schema that holds the rows of both: the columns of `a` in order, then those only `b` has. Never fails."""
    if a.equals(b, check_metadata=True):
        return a
    fields = {field.name: field for field in a}
    for field in b:
        known = fields.get(field.name)
        fields[field.name] = field if known is None else unify_fields(known, field)
    return pa.schema([field if field.nullable else field.with_nullable(True) for field in fields.values()])


def unify_all(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """`unify` over many; the empty schema for none."""
    known = pa.schema([])
    for schema in schemas:
        known = unify(known, schema)
    return known


def unify_fields(a: pa.Field, b: pa.Field) -> pa.Field:
    """One column out of two of the same name."""
    metadata = {**(b.metadata or {}), **(a.metadata or {})}
    metadata.pop(_MARK, None)
    if is_json_text(a) or is_json_text(b):
        return json_text_field(a.name, metadata)
    is_wide = _is_wide(a) or _is_wide(b)
    try:
        field = pa.field(a.name, unify_types(a.type, b.type, is_wide=is_wide), metadata=metadata)
    except _Mixed:
        return json_text_field(a.name, metadata)
    return mark(field, WIDE_INTS) if is_wide else field


def unify_types(a: pa.DataType, b: pa.DataType, *, is_wide: bool) -> pa.DataType:
    """The type that holds values of both, or _Mixed. `is_wide`: some integers are beyond what a double holds."""
    if a.equals(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_null(b):
        return a
    if pa.types.is_dictionary(a) or pa.types.is_dictionary(b):
        return unify_types(_plain(a), _plain(b), is_wide=is_wide)
    if _is_number(a) and _is_number(b):
        return _unify_numbers(a, b, is_wide=is_wide)
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return _unify_structs(a, b, is_wide=is_wide)
    if pa.types.is_map(a) and pa.types.is_map(b):
        return pa.map_(
            unify_types(a.key_type, b.key_type, is_wide=is_wide),
            unify_types(a.item_type, b.item_type, is_wide=is_wide),
        )
    if _is_list(a) and _is_list(b):
        element = unify_types(a.value_type, b.value_type, is_wide=is_wide)
        return pa.large_list(element) if _is_large(a) or _is_large(b) else pa.list_(element)
    if _is_text(a) and _is_text(b):
        return pa.large_string() if _is_large(a) or _is_large(b) else pa.string()
    if is_bytes(a) and is_bytes(b):
        return pa.large_binary() if _is_large(a) or _is_large(b) else pa.binary()
    return _unify_times(a, b)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(test(kind) for test in tests)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_large(kind: pa.DataType) -> bool:
    tests = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list, pa.types.is_large_list_view)
    return any(test(kind) for test in tests)


def _unify_structs(a: pa.StructType, b: pa.StructType, *, is_wide: bool) -> pa.DataType:
    fields = {field.name: field for field in a}
    if len(fields) != a.num_fields or len({field.name for field in b}) != b.num_fields:
        raise _Mixed  # a name twice: no union is right
    for field in b:
        known = fields.get(field.name)
        kind = field.type if known is None else unify_types(known.type, field.type, is_wide=is_wide)
        fields[field.name] = pa.field(field.name, kind)
    return pa.struct([pa.field(name, field.type) for name, field in fields.items()])


def _unify_numbers(a: pa.DataType, b: pa.DataType, *, is_wide: bool) -> pa.DataType:
    if pa.types.is_decimal(a) or pa.types.is_decimal(b):
        return _unify_decimals(a, b)
    if pa.types.is_floating(a) and pa.types.is_floating(b):
        return a if a.bit_width > b.bit_width else b
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        if is_wide:
            raise _Mixed
        return pa.float64()
    if pa.types.is_signed_integer(a) == pa.types.is_signed_integer(b):
        return a if a.bit_width > b.bit_width else b
    signed, unsigned = (a, b) if pa.types.is_signed_integer(a) else (b, a)
    if unsigned.bit_width < signed.bit_width:
        return signed
    if unsigned.bit_width == 64:
        raise _Mixed
    return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}[unsigned.bit_width]


def _unify_decimals(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        raise _Mixed
    integer_digits, scales = zip(*(_digits(kind) for kind in (a, b)), strict=True)
    precision, scale = max(integer_digits) + max(scales), max(scales)
    if precision > 76:
        raise _Mixed
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, max(kind.scale, 0)
    return {8: 3, 16: 5, 32: 10, 64: 20}[kind.bit_width], 0


def _unify_times(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    units = ("s", "ms", "us", "ns")
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and (a.tz is None) == (b.tz is None):
        return pa.timestamp(max(a.unit, b.unit, key=units.index), a.tz if a.tz == b.tz else "UTC")
    if pa.types.is_duration(a) and pa.types.is_duration(b):
        return pa.duration(max(a.unit, b.unit, key=units.index))
    if pa.types.is_time(a) and pa.types.is_time(b):
        finest = max(a.unit, b.unit, key=units.index)
        return pa.time64(finest) if finest in ("us", "ns") else pa.time32(finest)
    if pa.types.is_date(a) and pa.types.is_date(b):
        return pa.date64()
    for date, other in ((a, b), (b, a)):
        if pa.types.is_date(date) and pa.types.is_timestamp(other) and other.tz is None:
            return other
    raise _Mixed


def conform(data: _Data, schema: pa.Schema) -> _Data:
    """The same rows under `schema`, a schema that `unify` made of theirs and others: absent columns become nulls.

    Raises ValueError, naming the column, where a value cannot be held (the schema did not come from `unify`).
    """
    if data.schema.equals(schema, check_metadata=True):
        return data
    columns = []
    for field in schema:
        index = data.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(data.num_rows, field.type))
            continue
        columns.append(conform_column(data.column(index), data.schema.field(index), field))
    return type(data).from_arrays(columns, schema=schema)


def conform_column(column: pa.Array, source: pa.Field, target: pa.Field) -> pa.Array:
    """One column, of the field `source`, as the field `target`."""
    if is_json_text(target) and not is_json_text(source):
        return encode_array(column)
    if column.type.equals(target.type):
        return column
    try:
        if _holds_views(column.type):  # pyarrow 26 casts list views to empty lists
            return _rebuild(column, target.type)
        return column.cast(target.type)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return _rebuild(column, target.type)
    except pa.ArrowInvalid as problem:
        message = f"column `{target.name}`: {column.type} does not go into {target.type}: {problem}"
        raise ValueError(message) from problem


def _rebuild(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_rebuild(chunk, kind) for chunk in column.chunks], type=kind)
    return pa.array(column.to_pylist(), type=kind)


def _holds_views(kind: pa.DataType) -> bool:
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return True
    return any(_holds_views(kind.field(i).type) for i in range(kind.num_fields))
