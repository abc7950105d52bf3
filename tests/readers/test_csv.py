from __future__ import annotations

import datetime as dt
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offgen.errors import UsageError
from offgen.readers import Selection, open_input
from offgen.readers.csv import CsvSource
from offgen.readers.streams import Location


def write(folder: Path, text: str | bytes, name: str = "in.csv") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_types_are_those_pyarrow_infers_over_the_whole_file(tmp_path: Path, read: Any) -> None:
    rows = [f"{i},{i},x{i},2024-01-{i % 28 + 1:02}," for i in range(40_000)] + ["7,1.5,NA,2024-01-01 10:00:00,"]
    path = write(tmp_path, "i,f,s,d,n\n" + "\n".join(rows) + "\n")
    source = open_input([path])
    assert source.schema == pyarrow.csv.read_csv(path).schema
    assert source.schema.types == [pa.int64(), pa.float64(), pa.string(), pa.timestamp("s"), pa.null()]
    assert source.num_rows == 40_001
    got = read(source, ["i", "f", "s"], selection=Selection(skip=39_999))
    assert got.values == [{"i": 39_999, "f": 39_999.0, "s": "x39999"}, {"i": 7, "f": 1.5, "s": "NA"}]
    assert got.table.column("d").to_pylist()[-1] == dt.datetime(2024, 1, 1, 10)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_malformed_row_is_an_error_row(tmp_path: Path, read: Any, line_end: str) -> None:
    lines = ["prompt,n", "one,1", "", "two", '"a ""quoted""', 'text",2', "x,y,z", "three,3"]
    path = write(tmp_path, line_end.join(lines))
    got = read(path, ["prompt", "n"])
    inner = 'a "quoted"\ntext'  # line ends within quotes may lose their carriage return
    values = [{**v, "prompt": v["prompt"] and v["prompt"].replace("\r\n", "\n")} for v in got.values]
    none = {"prompt": None, "n": None}
    assert values == [{"prompt": "one", "n": 1}, none, {"prompt": inner, "n": 2}, none, {"prompt": "three", "n": 3}]
    assert [row.where for row in got.rows] == [f"{path}:{line}" for line in (2, 4, 6, 7, 8)]
    assert got.errors == {
        1: f"bad_row: {path}:4: 1 fields, but the header has 2",
        3: f"bad_row: {path}:7: 3 fields, but the header has 2",
    }


def test_bad_utf8_is_that_rows_error(tmp_path: Path, read: Any) -> None:
    got = read(write(tmp_path, b"\xef\xbb\xbfa,b\n1,x\n2,\xff\n3,z\n"), ["a"])
    assert [v["a"] for v in got.values] == [1, None, 3]
    assert list(got.errors) == [1]
    assert got.table.column("b").to_pylist() == ["x", None, "z"]


@pytest.mark.parametrize("text", ["", "\n", "prompt,n\n", "prompt,n"])
def test_no_rows_are_a_valid_input(tmp_path: Path, read: Any, text: str) -> None:
    source = open_input([write(tmp_path, text)])
    assert source.num_rows == 0
    assert read(source).rows == []
    assert source.schema.names == (["prompt", "n"] if "prompt" in text else [])


def test_compressed_csv_and_long_fields(tmp_path: Path, read: Any) -> None:
    text = "long " * 100_000
    got = read(write(tmp_path, gzip.compress(f"prompt\n{text}\n".encode()), "in.csv.gz"), ["prompt"])
    assert got.values == [{"prompt": text}]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two columns are named `a`"):
        open_input([write(tmp_path, "a,b,a\n1,2,3\n")])


FIELDS = st.sampled_from(
    ["", "1", "-3", "1.5", "true", "NA", "nan", "2024-01-01", "x", 'q"', "a,b", "l\nm", " 1", "1e3"]
)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whole_files_agree_with_pyarrow(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    quoted = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in [("a", "b"), *rows]]
    data = ("\n".join(quoted) + "\n").encode()
    expected = pyarrow.csv.read_csv(io.BytesIO(data), parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    path = tmp_path / "in.csv"
    path.write_bytes(data)
    source = CsvSource(Location(str(path), str(path)), "")
    assert source.schema == expected.schema
