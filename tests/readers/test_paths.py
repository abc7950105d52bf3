from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from offgen.errors import UsageError
from offgen.readers import Selection, open_input
from offgen.readers.paths import format_of, natural_key


def put(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_folders_and_globs_come_in_natural_order(tmp_path: Path, read: Any) -> None:
    for name in ("part-10", "part-2", "b/part-1", "a10/x", "a9/x", "part-1"):
        put(tmp_path / f"{name}.jsonl", {"n": name})
    expected = ["a9/x", "a10/x", "b/part-1", "part-1", "part-2", "part-10"]
    assert [v["n"] for v in read(str(tmp_path), ["n"]).values] == expected
    assert [v["n"] for v in read(f"{tmp_path}/", ["n"]).values] == expected
    assert [v["n"] for v in read(f"{tmp_path}/part-*.jsonl", ["n"]).values] == ["part-1", "part-2", "part-10"]
    assert [v["n"] for v in read(f"{tmp_path}/**/*.jsonl", ["n"]).values] == expected


def test_several_inputs_are_taken_in_the_order_given(tmp_path: Path, read: Any) -> None:
    first, second = put(tmp_path / "z.jsonl", {"n": 1}, {"n": 2}), put(tmp_path / "a.jsonl", {"n": 3})
    pq.write_table(pa.table({"n": [4], "x": ["y"]}), tmp_path / "m.parquet")
    got = read([str(first), str(tmp_path / "m.parquet"), str(second), str(first)], ["n"])
    assert got.ids == [0, 1, 2, 3, 4, 5]
    assert [v["n"] for v in got.values] == [1, 2, 4, 3, 1, 2]
    assert got.rows[3].where == f"{second}:1"
    assert got.table.column("x").to_pylist() == [None, None, "y", None, None, None]


def test_files_before_the_rows_that_are_wanted_are_not_opened(tmp_path: Path, read: Any) -> None:
    paths = [tmp_path / f"{i}.parquet" for i in range(3)]
    for path in paths:
        pq.write_table(pa.table({"n": range(10)}), path)
    source = open_input([str(tmp_path)])
    paths[0].unlink()
    paths[2].unlink()
    assert read(source, selection=Selection(skip=10, limit=10)).ids == list(range(10, 20))


def test_hidden_files_and_other_suffixes_are_left_out_of_folders(tmp_path: Path, read: Any) -> None:
    put(tmp_path / "a.jsonl", {"n": 1})
    for name in ("_SUCCESS", "README.md", "_offgen/journal.arrow", ".hidden.jsonl", ".git/x.jsonl", "_tmp.jsonl"):
        put(tmp_path / name, "not a row")
    assert read(str(tmp_path), ["n"]).values == [{"n": 1}]


def test_what_a_job_writes_into_its_input_folder_is_no_input(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", {"n": 1})
    put(tmp_path / "out.jsonl", {"n": 2})
    put(tmp_path / "out.jsonl.offgen/report.json", {"n": 3})
    put(tmp_path / "old.jsonl.offgen/run.json", {"n": 3})
    put(tmp_path / "made/part-00000.jsonl", {"n": 4})
    put(tmp_path / "made/shard-0-of-2/part-00000.jsonl", {"n": 5})

    def names(path: Path, output: str) -> list[str]:
        return [file["file"] for file in open_input([str(path)], output=tmp_path / output).fingerprint()["files"]]

    assert len(names(tmp_path, "out.jsonl")) == 3
    assert names(tmp_path, "made") == names(tmp_path / "*.jsonl", "elsewhere")
    assert len(names(tmp_path / "**/*.js*", "out.jsonl")) == 3
    assert len(names(tmp_path / "*.jsonl", "out.jsonl")) == 1
    assert len(names(tmp_path / "made", "made")) == 2  # beside what is there: the writers say whether they may
    with pytest.raises(UsageError, match="is the input and the output"):
        open_input([str(tmp_path / "out.jsonl")], output=tmp_path / "made/../out.jsonl")


@pytest.mark.parametrize("values", [["1", "-2"], ["1", "x"], ["3000000000"], ["1.5"], ["1", None], ["a b%2Fc"]])
def test_hive_folders_become_columns_of_the_type_pyarrow_infers(
    tmp_path: Path, read: Any, values: list[str | None]
) -> None:
    for value in values:
        folder = tmp_path / f"lang={value or '__HIVE_DEFAULT_PARTITION__'}" / "year=2024"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"prompt": ["hi", "ho"]}), folder / "x.parquet")
    expected = pyarrow.dataset.dataset(tmp_path, partitioning="hive").to_table()
    got = read(str(tmp_path), ["prompt", "lang"])
    assert got.table.schema.names == ["prompt", "lang", "year"]
    for name in ("lang", "year"):
        assert got.table.schema.field(name).type == expected.schema.field(name).type
        assert sorted(map(str, got.table.column(name).to_pylist())) == sorted(map(str, expected[name].to_pylist()))
    assert [v["lang"] for v in got.values] == got.table.column("lang").to_pylist()


def test_hive_columns_come_with_globs_and_jsonl_and_stand_in_for_the_files_own(tmp_path: Path, read: Any) -> None:
    put(tmp_path / "k=1" / "a.jsonl", {"p": "x"})
    put(tmp_path / "k=2" / "a.jsonl", {"p": "y", "k": "own"})
    for path in (str(tmp_path), f"{tmp_path}/k=*/a.jsonl", f"{tmp_path}/*/", f"{tmp_path}/**/*.jsonl"):
        got = read(path, ["p", "k"])
        assert [(v["p"], v["k"]) for v in got.values] == [("x", 1), ("y", 2)], path
        assert got.table.column("k").to_pylist() == [1, 2]
    assert read(str(tmp_path / "k=1" / "a.jsonl")).table.schema.names == ["p"]


def test_a_link_that_leads_back_up_is_followed_once(tmp_path: Path, read: Any) -> None:
    put(tmp_path / "a" / "x.jsonl", {"n": 1})
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert read(str(tmp_path), ["n"]).values == [{"n": 1}]


def test_a_name_with_wildcard_characters_that_exists_is_that_file(tmp_path: Path, read: Any) -> None:
    path = put(tmp_path / "a[1].jsonl", {"n": 1})
    put(tmp_path / "a1.jsonl", {"n": 2})
    assert read(str(path), ["n"]).values == [{"n": 1}]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing.jsonl", "no such file"),
        ("missing/*.jsonl", "no file matches"),
        ("empty", "no input files"),
        ("data.xyz", "suffix tells no format"),
        ("data.parquet.gz", "suffix tells no format"),
        ("mixed", "beside files of another format"),
        ("nosuch://x/y.jsonl", "nosuch"),
    ],
)
def test_what_cannot_be_found_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    put(tmp_path / "data.xyz", {"n": 1})
    put(tmp_path / "data.parquet.gz", {"n": 1})
    put(tmp_path / "mixed" / "a.jsonl", {"n": 1})
    put(tmp_path / "mixed" / "info.json", {"n": 1})
    with pytest.raises(UsageError, match=says) as caught:
        open_input([path])
    assert path.split("/")[0] in str(caught.value)


def test_the_format_can_be_named(tmp_path: Path, read: Any) -> None:
    path = put(tmp_path / "data.txt", {"n": 1})
    assert read(str(path), ["n"], input_format="jsonl").values == [{"n": 1}]
    put(tmp_path / "table.csv", {"n": 1})
    assert read(str(tmp_path), ["n"], input_format="jsonl").rows[0].where.endswith("data.txt:1")
    with pytest.raises(UsageError, match="unknown input format `xml`"):
        open_input([str(path)], input_format="xml")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ("jsonl", "")),
        ("A.JSONL.GZ", ("jsonl", ".gz")),
        ("a.ndjson.zst", ("jsonl", ".zst")),
        ("a.csv.xz", ("csv", ".xz")),
        ("a.json.bz2", ("json", ".bz2")),
        ("a.feather", ("arrow", "")),
        ("a.gz", ("", ".gz")),
        ("jsonl", ("", "")),
    ],
)
def test_suffixes(name: str, expected: tuple[str, str]) -> None:
    assert format_of(name) == expected


def test_natural_order_never_compares_text_with_numbers() -> None:
    names = ["a1", "1a", "a", "", "10", "9", "a01", "a1b", "²", "a²"]
    assert sorted(sorted(names, reverse=True), key=natural_key) == sorted(names, key=natural_key)


def test_mixed_formats_share_one_schema(tmp_path: Path, read: Any) -> None:
    put(tmp_path / "a.jsonl", {"n": 1, "t": "x"})
    (tmp_path / "b.csv").write_text("n,t\n2.5,3\n")
    pq.write_table(pa.table({"n": pa.array([3], pa.int8()), "t": ["z"]}), tmp_path / "c.parquet")
    table = read(str(tmp_path)).table
    assert table.column("n").to_pylist() == [1.0, 2.5, 3.0]
    assert table.column("t").to_pylist() == ['"x"', "3", '"z"']


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "nowhere.jsonl"])
def test_a_name_that_no_file_has_is_wrong_usage(path: str) -> None:
    with pytest.raises(UsageError):
        open_input([path])
