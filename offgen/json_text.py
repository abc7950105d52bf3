"""Arrow values as JSON: what a value of each type looks like in a JSONL line or in a JSON text column.

Numbers, strings, booleans, lists and structs are what they are; a map is a list of [key, value]; NaN and infinities are
null (JSON has none); dates and times are ISO 8601 text as Arrow prints it; a decimal is text, so that no digit is lost;
bytes are base64 text. Pure pyarrow and standard library.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
from typing import Any

import pyarrow as pa


def dumps(value: Any) -> str:
    """One line of strict JSON for a value made of Python's JSON types; NaN and infinities become null."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(_finite(value))


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The column as Python values that `dumps` takes, whatever its Arrow type."""
    kind = json_type(column.type)
    if kind.equals(column.type) and not _holds_bytes(kind):
        return list(column.to_pylist())
    with contextlib.suppress(pa.ArrowNotImplementedError):  # list views keep Python's own texts of dates and decimals
        column = column.cast(kind)
    return [_plain(value) for value in column.to_pylist()]


def encode_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A string column of JSON texts, one for each value; nulls stay nulls."""
    texts = [None if value is None else dumps(value) for value in json_values(column)]
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([pa.array(texts, pa.string())], type=pa.string())
    return pa.array(texts, pa.string())


def json_type(kind: pa.DataType) -> pa.DataType:
    """`kind` with the leaves that Python's JSON does not know (dates, times, decimals) replaced by strings."""
    if isinstance(kind, pa.BaseExtensionType):
        return json_type(kind.storage_type)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return json_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, json_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(json_type(kind.key_type), json_type(kind.item_type))
    for is_kind, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list_view, pa.list_view),
        (pa.types.is_large_list_view, pa.large_list_view),
    ):
        if is_kind(kind):
            return make(json_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(json_type(kind.value_type), kind.list_size)
    return kind


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the type is one of Arrow's kinds of bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _holds_bytes(kind: pa.DataType) -> bool:
    return is_bytes(kind) or any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
