from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from offgen.json_text import dumps, encode_array, json_values


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (dt.datetime(2024, 1, 2), pa.timestamp("ns"), '"2024-01-02 00:00:00.000000000"'),
        (dt.date(2024, 1, 2), pa.date32(), '"2024-01-02"'),
        ([dt.date(2024, 1, 2)], pa.list_(pa.date32()), '["2024-01-02"]'),
        ([dt.date(2024, 1, 2)], pa.list_view(pa.date32()), '["2024-01-02"]'),
        ({"d": Decimal("1.20")}, pa.struct([("d", pa.decimal128(10, 2))]), '{"d": "1.20"}'),
        (dt.timedelta(days=1), pa.duration("s"), '"86400"'),
        (b"ab", pa.binary(), '"YWI="'),
        ([b"ab"], pa.list_(pa.binary(2)), '["YWI="]'),
        ([("k", 1.5)], pa.map_(pa.string(), pa.float64()), '[["k", 1.5]]'),
        ([0.5, float("nan"), float("inf")], pa.list_(pa.float64()), "[0.5, null, null]"),
        ("ü\u2028", pa.string_view(), '"ü\u2028"'),
        ("x", pa.dictionary(pa.int8(), pa.string()), '"x"'),
        (2**63, pa.uint64(), "9223372036854775808"),
    ],
)
def test_arrow_values_as_json(value: Any, kind: pa.DataType, expected: str) -> None:
    column = pa.array([value, None], kind)
    assert encode_array(column).to_pylist() == [expected, None]
    assert encode_array(pa.chunked_array([column, column])).to_pylist() == [expected, None] * 2
    assert [dumps(v) for v in json_values(column)] == [expected, "null"]
    json.loads(expected)


def test_chunks_without_rows() -> None:
    assert encode_array(pa.chunked_array([], pa.int64())).to_pylist() == []
