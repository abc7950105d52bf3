from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from offgen.convert import ConvertOptions, convert
from offgen.errors import JobError, UsageError
from offgen.readers import Selection, open_input

RECORDS = [
    {"prompt": f'say {i}\n"x"', "n": i, "score": i / 4, "ok": i % 2 == 0, "tags": ["a"] * (i % 3), "m": {"k": str(i)}}
    for i in range(3000)
]
NAMES = ["a.parquet", "a.arrow", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.xz", "a.jsonl.bz2", "folder"]


def jsonl(path: Path, records: list[Any]) -> str:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), "utf-8")
    return str(path)


def table_of(path: Path | str) -> pa.Table:
    source = open_input([str(path)])
    batches = [piece.batch for _, piece in source.pieces(selection=Selection())]
    return pa.Table.from_batches(batches, schema=batches[-1].schema if batches else source.schema)


def go(src: Any, dst: Any, **options: Any) -> Any:
    return convert(str(src), str(dst), ConvertOptions(**options))


@pytest.mark.parametrize("second", NAMES)
@pytest.mark.parametrize("first", ["a.parquet", "a.arrow", "folder", "a.jsonl.zst"])
def test_rows_survive_any_way_round(tmp_path: Path, first: str, second: str) -> None:
    src = jsonl(tmp_path / "in.jsonl", RECORDS)
    (tmp_path / "1").mkdir()
    assert go(src, tmp_path / "1" / first).num_rows == 3000
    assert go(tmp_path / "1" / first, tmp_path / second).num_rows == 3000
    assert table_of(tmp_path / second).to_pylist() == RECORDS
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["1", "in.jsonl", second])  # nothing else is left


def test_columns_keep_their_types_through_typed_formats(tmp_path: Path) -> None:
    from decimal import Decimal

    table = pa.table(
        {
            "d": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
            "t": pa.array([1, None], pa.timestamp("us", "UTC")),
            "c": pa.array(["x", None]).dictionary_encode(),
            "l": pa.array(["x", None], pa.large_string()),
            "i": pa.array([1, None], pa.int8()),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    go(tmp_path / "in.parquet", tmp_path / "a.arrow")
    go(tmp_path / "a.arrow", tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "b.parquet").equals(table)
    go(tmp_path / "in.parquet", tmp_path / "c.csv")
    assert (tmp_path / "c.csv").read_text().splitlines()[1].startswith('"1.10",1970-01-01 00:00:00.000001Z,"x","x",1')


@pytest.mark.parametrize("dst", ["a.parquet", "a.arrow", "folder", "a.csv"])
def test_a_schema_that_changes_late_is_written_as_if_known(tmp_path: Path, dst: str) -> None:
    records: list[Any] = [{"a": None, "m": i, "f": i} for i in range(2500)]
    records += [{"a": {"x": 1}, "m": "text", "f": 0.5, "late": [1]}, {"a": {"y": "q"}, "m": [1, "2"], "f": 1}]
    src = jsonl(tmp_path / "in.jsonl", records)
    assert go(src, tmp_path / dst).num_rows == 2502
    rows = table_of(tmp_path / dst).to_pylist()
    if dst == "a.csv":
        assert rows[-2:] == [
            {"a": '{"x": 1, "y": null}', "m": '"text"', "f": 0.5, "late": "[1]"},
            {"a": '{"x": null, "y": "q"}', "m": '[1, "2"]', "f": 1.0, "late": ""},
        ]
    else:
        assert rows[-2:] == [
            {"a": {"x": 1, "y": None}, "m": '"text"', "f": 0.5, "late": [1]},
            {"a": {"x": None, "y": "q"}, "m": '[1, "2"]', "f": 1.0, "late": None},
        ]
    assert (rows[0]["m"], rows[0]["f"]) == ("0", 0.0)


def test_mixed_values_come_back_as_they_were_through_parquet(tmp_path: Path) -> None:
    records = [{"m": 1}, {"m": "1"}, {"m": None}, {"m": [True]}, {"m": {"a": "ü"}}]
    go(jsonl(tmp_path / "in.jsonl", records), tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").column("m").to_pylist() == ["1", '"1"', None, "[true]", '{"a": "ü"}']
    go(tmp_path / "a.parquet", tmp_path / "b.jsonl")
    assert [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()] == records


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_both_ways(tmp_path: Path, name: str) -> None:
    go(jsonl(tmp_path / "in.jsonl", [*RECORDS, {"prompt": "", "n": None}]), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    rows = list(csv.DictReader(io.StringIO((gzip.decompress(data) if name.endswith("gz") else data).decode())))
    assert rows[4] == {
        "prompt": 'say 4\n"x"', "n": "4", "score": "1", "ok": "true", "tags": '["a"]', "m": '{"k": "4"}'
    }  # fmt: skip
    go(tmp_path / name, tmp_path / "b.parquet")
    table = pq.read_table(tmp_path / "b.parquet")
    assert table.select(["prompt", "n"]).to_pylist()[:3000] == [{"prompt": r["prompt"], "n": r["n"]} for r in RECORDS]


def test_a_dataset_folder_is_what_the_library_reads(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    go(jsonl(tmp_path / "in.jsonl", RECORDS), str(tmp_path / "folder") + "/")
    loaded = datasets.load_from_disk(str(tmp_path / "folder"))
    assert loaded[7] == RECORDS[7]
    assert loaded.num_rows == 3000
    datasets.DatasetDict({"train": loaded, "test": loaded}).save_to_disk(tmp_path / "dict")
    go(tmp_path / "dict", tmp_path / "a.parquet", split="test", limit=5, skip=2)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == RECORDS[2:7]


@pytest.mark.parametrize("dst", ["a.parquet", "a.arrow", "a.jsonl", "a.csv", "folder"])
def test_no_rows_make_a_valid_empty_target(tmp_path: Path, dst: str) -> None:
    assert go(jsonl(tmp_path / "in.jsonl", []), tmp_path / dst).num_rows == 0
    assert table_of(tmp_path / dst).num_rows == 0


def test_what_is_there_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    src = jsonl(tmp_path / "in.jsonl", [{"a": 1}])
    for name in ("out.parquet", "folder"):
        go(src, tmp_path / name)
        with pytest.raises(UsageError, match="exists already") as caught:
            go(src, tmp_path / name)
        assert caught.value.hint == "--overwrite"
        go(src, tmp_path / name, overwrite=True)
        assert table_of(tmp_path / name).to_pylist() == [{"a": 1}]
    go(src, src, overwrite=True)  # onto itself
    assert table_of(src).to_pylist() == [{"a": 1}]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("x")
    with pytest.raises(UsageError, match="not a saved dataset"):
        go(src, tmp_path / "other", overwrite=True)


def test_a_bad_row_stops_it_by_file_and_line_and_leaves_nothing(tmp_path: Path) -> None:
    src = jsonl(tmp_path / "in.jsonl", [{"a": 1}, "", "broken", {"a": 2}])
    with pytest.raises(JobError, match=r"in\.jsonl:3: not valid JSON") as caught:
        go(src, tmp_path / "out.parquet")
    assert caught.value.exit_code == 1
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]
    done = go(src, tmp_path / "out.parquet", skip_bad_rows=True)
    assert (done.num_rows, done.num_bad_rows) == (2, 1)
    assert table_of(tmp_path / "out.parquet").to_pylist() == [{"a": 1}, {"a": 2}]


def test_the_old_target_stays_when_a_conversion_fails(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("old")
    with pytest.raises(JobError):
        go(jsonl(tmp_path / "in.jsonl", [{"a": 1}, "broken"]), tmp_path / "out.jsonl", overwrite=True)
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("src", "dst", "options", "says"),
    [
        ("missing.jsonl", "a.parquet", {}, "no such file"),
        ("in.jsonl", "nowhere/a.parquet", {}, "no such folder"),
        ("in.jsonl", "a.parquet.gz", {}, "not compressed as a whole"),
        ("in.jsonl", "a.parquet", {"output_format": "xml"}, "unknown output format"),
        ("in.jsonl", "out/", {"output_format": "parquet"}, "name a file"),
        ("in.jsonl", "s3://b/x.parquet", {}, "local files"),
        ("in.jsonl", "-", {"output_format": "parquet"}, "stdout"),
        ("map.parquet", "folder", {}, "column `m`"),
    ],
)
def test_wrong_usage_is_said_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, src: str, dst: str, options: Any, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "in.jsonl", [{"a": 1}])
    pq.write_table(pa.table({"m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}), tmp_path / "map.parquet")
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(UsageError, match=says):
        go(src, dst, **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_stdin_to_file_and_file_to_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(json.dumps({"a": i if i < 40_000 else "x", "pad": "y" * 40}) + "\n" for i in range(40_001))

    class Stream(io.BytesIO):
        @property
        def buffer(self) -> Stream:
            return self

    monkeypatch.setattr(sys, "stdin", Stream(text.encode()))
    assert go("-", tmp_path / "a.parquet").num_rows == 40_001  # the schema changes with the last row
    assert pq.read_table(tmp_path / "a.parquet").column("a").to_pylist()[-2:] == ["39999", '"x"']
    out = Stream()
    monkeypatch.setattr(sys, "stdout", out)
    assert go(tmp_path / "a.parquet", "-").num_rows == 40_001
    assert out.getvalue().decode() == text


def test_row_groups_are_of_a_sensible_size(tmp_path: Path) -> None:
    go(jsonl(tmp_path / "in.jsonl", [{"a": i} for i in range(70_000)]), tmp_path / "a.parquet")
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert metadata.num_row_groups == 2
    assert metadata.row_group(0).num_rows > 60_000


def test_lines_stay_the_objects_they_were(tmp_path: Path) -> None:
    records = [{"a": 1}, {"b": None}, {"a": 0.5, "c": [{}, {"x": 2**70}]}, {}]
    go(jsonl(tmp_path / "in.jsonl", records), tmp_path / "out.jsonl.gz")
    text = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).decode()
    assert text == "".join(json.dumps(record) + "\n" for record in records)


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    src = jsonl(tmp_path / "in.jsonl", RECORDS)
    go(src, tmp_path / "a.parquet", columns=("n", "ok", "m"), drop_columns=("m",))
    assert table_of(tmp_path / "a.parquet").schema.names == ["n", "ok"]
