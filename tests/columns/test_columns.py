from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offgen.columns import WIDE_INTS, conform, is_json_text, mark, unify, unify_all

STRUCT_A, STRUCT_B = pa.struct([("a", pa.int64())]), pa.struct([("b", pa.string()), ("a", pa.float64())])
TYPES = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint8(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.binary(3),
    pa.date32(),
    pa.date64(),
    pa.timestamp("s"),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ms", "Europe/Berlin"),
    pa.time32("s"),
    pa.time64("us"),
    pa.duration("s"),
    pa.duration("us"),
    pa.decimal128(10, 2),
    pa.decimal128(38, 0),
    pa.decimal256(60, 20),
    pa.list_(pa.int64()),
    pa.list_(pa.null()),
    pa.large_list(pa.string()),
    pa.list_(pa.int32(), 2),
    pa.list_view(pa.int64()),
    pa.list_(STRUCT_A),
    STRUCT_A,
    STRUCT_B,
    pa.struct([]),
    pa.map_(pa.string(), pa.int64()),
    pa.map_(pa.string(), pa.null()),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.string()),
]


def value_of(kind: pa.DataType) -> Any:
    """Some value of a type."""
    if pa.types.is_dictionary(kind):
        return value_of(kind.value_type)
    if pa.types.is_map(kind):
        return [("k", value_of(kind.item_type))]
    if pa.types.is_struct(kind):
        return {field.name: value_of(field.type) for field in kind}
    if hasattr(kind, "value_type"):
        return [value_of(kind.value_type)] * 2
    for test, value in (
        (pa.types.is_null, None),
        (pa.types.is_boolean, True),
        (pa.types.is_integer, 7),
        (pa.types.is_floating, 0.5),
        (pa.types.is_decimal, Decimal("3")),
        (pa.types.is_date, dt.date(2024, 1, 2)),
        (pa.types.is_timestamp, dt.datetime(2024, 1, 2, 3, 4, 5)),
        (pa.types.is_time, dt.time(1, 2, 3)),
        (pa.types.is_duration, dt.timedelta(seconds=5)),
        (pa.types.is_fixed_size_binary, b"abc"),
    ):
        if test(kind):
            return value
    return b"ab" if "binary" in str(kind) else "text"


def table_of(kind: pa.DataType) -> pa.Table:
    return pa.table({"x": pa.array([value_of(kind), None], kind), "same": [1, 2]})


def check_pair(a: pa.DataType, b: pa.DataType) -> None:
    tables = [table_of(a), table_of(b)]
    schema = unify(tables[0].schema, tables[1].schema)
    for table in tables:
        got = conform(table, schema)
        assert got.schema.equals(schema, check_metadata=True)
        got.validate(full=True)
        assert got.column("x")[1].as_py() is None
        value, kind = table.column("x")[0].as_py(), table.schema.field("x").type
        if is_json_text(schema.field("x")):
            json.loads(got.column("x")[0].as_py() or "null")
        elif pa.types.is_primitive(kind) and not pa.types.is_temporal(kind):
            assert got.column("x")[0].as_py() == value


@pytest.mark.parametrize("a", TYPES, ids=str)
def test_any_two_types_unify_and_their_values_conform(a: pa.DataType) -> None:
    for b in TYPES:
        check_pair(a, b)


@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_many_parts_widen_one_after_the_other(kinds: list[pa.DataType]) -> None:
    tables = [table_of(kind) for kind in kinds]
    schema = pa.schema([])
    parts: list[pa.Table] = []
    for table in tables:
        schema = unify(schema, table.schema)
        parts = [conform(part, schema) for part in [*parts, table]]
    assert pa.concat_tables(parts).num_rows == 2 * len(kinds)
    assert unify_all(part.schema for part in parts).equals(schema, check_metadata=True)


def test_columns_keep_their_order_and_absent_ones_are_null() -> None:
    a, b = pa.table({"x": [1], "y": ["q"]}), pa.table({"z": [0.5], "y": ["r"]})
    schema = unify(a.schema, b.schema)
    assert schema.names == ["x", "y", "z"]
    assert conform(b, schema).to_pylist() == [{"x": None, "y": "r", "z": 0.5}]
    batch = a.to_batches()[0]
    assert isinstance(conform(batch, schema), pa.RecordBatch)
    assert conform(batch, batch.schema) is batch


def test_mixed_values_are_each_their_json() -> None:
    parts = [pa.table({"m": column}) for column in ([1, None], ["x"], [[1.5, None]], [{"k": "ü"}], [True])]
    schema = unify_all(part.schema for part in parts)
    assert is_json_text(schema.field("m"))
    texts = [value for part in parts for value in conform(part, schema).column("m").to_pylist()]
    assert texts == ["1", None, '"x"', "[1.5, null]", '{"k": "ü"}', "true"]


def test_json_text_is_not_encoded_twice() -> None:
    schema = unify(pa.schema([("m", pa.int64())]), pa.schema([("m", pa.string())]))
    once = conform(pa.table({"m": ["x"]}), schema)
    wider = unify(once.schema, pa.schema([("m", pa.bool_())]))
    assert conform(once, wider).column("m").to_pylist() == ['"x"']


def test_wide_integers_beside_floats_are_json_text() -> None:
    floats = pa.schema([("x", pa.float64())])
    plain, wide = pa.schema([("x", pa.int64())]), pa.schema([mark(pa.field("x", pa.int64()), WIDE_INTS)])
    assert unify(plain, floats).field("x").type == pa.float64()
    assert is_json_text(unify(unify(plain, wide), floats).field("x"))
    assert is_json_text(unify(floats, wide).field("x"))
    with pytest.raises(ValueError, match="column `x`"):
        conform(pa.table({"x": [2**53 + 1]}), floats)


def test_slices_conform_like_whole_tables() -> None:
    table = pa.table({"x": [[{"a": i}] for i in range(10)], "y": [str(i) for i in range(10)]})
    schema = unify(table.schema, pa.schema([("x", pa.list_(STRUCT_B)), ("y", pa.int64())]))
    batch = table.to_batches()[0].slice(4, 3)
    assert conform(batch, schema).to_pylist() == conform(table, schema).to_pylist()[4:7]


def test_a_struct_with_one_name_twice_becomes_json_text() -> None:
    twice = pa.struct([pa.field("a", pa.int64()), pa.field("a", pa.int64())])
    assert is_json_text(unify(pa.schema([("x", twice)]), pa.schema([("x", STRUCT_A)])).field("x"))
