from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offgen.errors import JobError, UsageError
from offgen.readers import Selection, open_input
from offgen.readers import parquet as parquet_reader


def rich_table() -> pa.Table:
    return pa.table(
        {
            "prompt": pa.array(["a", None, "c"], pa.large_string()),
            "view": pa.array(["x", "y", None], pa.string_view()),
            "dict": pa.array(["r", "g", "r"]).dictionary_encode(),
            "money": pa.array([Decimal("1.10"), None, Decimal("-3.00")], pa.decimal128(12, 2)),
            "at": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5), None, None], pa.timestamp("us", "UTC")),
            "ns": pa.array([1, 2, None], pa.timestamp("ns")),
            "day": pa.array([dt.date(2024, 1, 2), None, None]),
            "clock": pa.array([dt.time(1, 2, 3), None, None], pa.time64("us")),
            "messages": pa.array([[{"role": "user", "content": "hi"}], None, []]),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "raw": pa.array([b"\xff", None, b""], pa.binary()),
            "small": pa.array([1, 2, None], pa.int8()),
            "none": pa.nulls(3),
        }
    )


def test_columns_keep_type_and_value(tmp_path: Path, read: Any) -> None:
    table = rich_table()
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    source = open_input([str(path)])
    assert source.num_rows == 3
    assert source.schema.types == pq.read_schema(path).types
    got = read(source, ["prompt", "messages", "dict", "view"])
    expected = pq.read_table(path)
    assert got.table.schema.types == expected.schema.types
    assert got.table.to_pylist() == expected.to_pylist()
    assert got.values[0] == {"prompt": "a", "messages": [{"role": "user", "content": "hi"}], "dict": "r", "view": "x"}
    assert [row.where for row in got.rows] == [f"{path}:{i}" for i in range(3)]


def test_shards_of_every_type_are_taken_row_by_row(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.concat_tables([rich_table()] * 5), path)
    got = read(str(path), selection=Selection(shard_index=1, num_shards=4))
    expected = pq.read_table(path).to_pylist()
    assert got.ids == [1, 5, 9, 13]
    assert got.table.to_pylist() == [expected[i] for i in got.ids]


def test_only_row_groups_with_missing_rows_are_read(tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"i": range(5000)}), path, row_group_size=500)
    groups: list[int] = []
    original = parquet_reader.ParquetSource._group

    def spy(self: Any, file: Any, group: int, *rest: Any) -> Any:
        groups.append(group)
        return original(self, file, group, *rest)

    monkeypatch.setattr(parquet_reader.ParquetSource, "_group", spy)
    missing = {3, 1200, 1201, 4999}
    source = open_input([str(path)])
    assert read(source, ["i"], done=set(range(5000)) - missing).values == [{"i": i} for i in sorted(missing)]
    assert groups == [0, 2, 9]
    groups.clear()
    assert read(source, selection=Selection(skip=700, limit=400)).ids == list(range(700, 1100))
    assert groups == [1, 2]
    assert read(source, done=set(range(5000))).rows == []


def test_several_files_unify(tmp_path: Path, read: Any) -> None:
    tables = [
        pa.table({"a": pa.array([1], pa.int32()), "s": [{"x": 1}], "t": pa.nulls(1), "m": [1]}),
        pa.table({"a": pa.array([0.5]), "s": [{"y": "q"}], "t": [["k"]], "m": ["one"]}),
        pa.table({"b": pa.array(["z"], pa.large_string()), "a": pa.array([7], pa.int64())}),
    ]
    for i, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"part-{i}.parquet")
    source = open_input([str(tmp_path)])
    got = read(source, ["a"])
    assert got.table.schema.equals(source.schema)
    assert source.schema.field("a").type == pa.float64()
    assert got.table.to_pylist() == [
        {"a": 1.0, "s": {"x": 1, "y": None}, "t": None, "m": "1", "b": None},
        {"a": 0.5, "s": {"x": None, "y": "q"}, "t": ["k"], "m": '"one"', "b": None},
        {"a": 7.0, "s": None, "t": None, "m": None, "b": "z"},
    ]


@pytest.mark.parametrize("has_statistics", [True, False])
def test_integers_that_no_double_holds_make_json_text_beside_floats(
    tmp_path: Path, read: Any, has_statistics: bool
) -> None:
    pq.write_table(pa.table({"a": [2**53 + 1, -5]}), tmp_path / "0.parquet", write_statistics=has_statistics)
    pq.write_table(pa.table({"a": [0.5]}), tmp_path / "1.parquet")
    assert read(str(tmp_path)).table.column("a").to_pylist() == ["9007199254740993", "-5", "0.5"]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(UsageError, match="two columns are named `a`"):
        open_input([str(path)])


def test_zero_rows_are_a_valid_input(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    source = open_input([str(path)])
    assert (source.num_rows, source.schema.names, read(source).rows) == (0, ["prompt"], [])


@pytest.mark.parametrize("keep", [0, 3, 100, -1, -9])
def test_a_truncated_file_is_named_at_open(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": range(1000)}), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"in\.parquet: cannot be read as Parquet"):
        open_input([str(path)])


def test_broken_pages_stop_the_job_and_name_the_file(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": [f"text {i}" for i in range(10_000)]}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:4000] = b"\x55" * 3996
    path.write_bytes(data)
    with pytest.raises(JobError, match=r"in\.parquet"):
        read(str(path))


def test_a_file_that_vanishes_or_changes_stops_the_job(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    source = open_input([str(path)])
    pq.write_table(pa.table({"a": [1, 2]}), path)
    with pytest.raises(JobError, match=r"in\.parquet.*changed"):
        read(source)
    path.unlink()
    with pytest.raises(JobError, match=r"in\.parquet.*gone"):
        read(source)


def test_one_huge_row_group_is_read_in_small_batches(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    rng = np.random.default_rng(0)
    texts = ["".join(chr(97 + c) for c in row) for row in rng.integers(0, 26, (200, 1000))]
    pq.write_table(
        pa.table({"prompt": [texts[i % 200] * 3 for i in range(20_000)]}),
        path,
        row_group_size=20_000,
        use_dictionary=False,
        compression="none",
    )
    before = pa.total_allocated_bytes()
    peak = 0
    num_rows = 0
    source = open_input([str(path)])
    for row in source.rows(["prompt"], selection=Selection(), skip=lambda row_id: False):
        peak = max(peak, pa.total_allocated_bytes() - before)
        num_rows += 1
        assert row.record.num_rows <= 1024
    assert num_rows == 20_000
    assert peak < 24 << 20  # the row group holds 60 MB


def test_the_fingerprint_follows_the_content_not_the_folder(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / folder / "in.parquet")
    first = open_input([str(tmp_path / "a")]).fingerprint()
    assert first == open_input([str(tmp_path / "b" / "in.parquet")]).fingerprint()
    pq.write_table(pa.table({"x": [2]}), tmp_path / "b" / "in.parquet")
    assert first != open_input([str(tmp_path / "b")]).fingerprint()
