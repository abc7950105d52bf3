from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offgen.errors import JobError, UsageError
from offgen.readers import Selection, open_input
from offgen.readers.jsonl import JsonlSource
from offgen.readers.splits import Wanted

MESSY = [
    b'{"prompt": "one"}',
    b"",
    b" \t ",
    b"[1,2]",
    b"null",
    b'{"prompt": ',
    b"\xff\xfe",
    b'"text"',
    b"17",
    b'{"prompt": "two"} x',
    b'{"prompt": "three"}',
]


def write(folder: Path, *lines: Any, name: str = "in.jsonl") -> str:
    path = folder / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return str(path)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last_end", [b"", b"\n"])
def test_a_bad_line_is_an_error_row_and_blank_lines_keep_their_number(
    tmp_path: Path, read: Any, line_end: bytes, last_end: bytes
) -> None:
    path = tmp_path / "messy.jsonl"
    path.write_bytes(line_end.join(MESSY) + last_end)
    got = read(str(path), ["prompt"])
    assert got.ids == list(range(9))  # eleven lines less two blank ones
    assert [row.where for row in got.rows] == [f"{path}:{line}" for line in (1, 4, 5, 6, 7, 8, 9, 10, 11)]
    assert [v["prompt"] for v in got.values] == ["one", *[None] * 7, "three"]
    assert sorted(got.errors) == [1, 2, 3, 4, 5, 6, 7]
    assert got.errors[1] == f"bad_row: {path}:4: not a JSON object but a list"
    assert "UTF-8" in got.errors[4]
    assert "after the end" in got.errors[7]
    assert got.table.column("prompt").to_pylist() == ["one", *[None] * 7, "three"]


def test_lines_end_at_0x0a_only(tmp_path: Path, read: Any) -> None:
    texts = ["a\u2028b", "c\u0085d", "e\x0cf", "g\x1ch", "i\u2029j", "k\rl"]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(json.dumps({"t": t}, ensure_ascii=False).encode() + b"\n" for t in texts[:-1]))
    assert [v["t"] for v in read(str(path), ["t"]).values] == texts[:-1]
    assert read(str(path)).table.column("t").to_pylist() == texts[:-1]


def test_a_byte_order_mark_at_the_start_is_dropped(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')
    got = read(str(path), ["a"])
    assert got.values[0] == {"a": 1}
    assert list(got.errors) == [1]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b" \r\n\n"])
def test_a_file_without_rows_is_a_valid_input(tmp_path: Path, read: Any, content: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    source = open_input([str(path)])
    assert source.num_rows == 0
    assert source.count_rows() == 0
    assert source.schema.names == []
    assert read(source, ["prompt"]).rows == []


def test_the_last_of_two_equal_keys_wins(tmp_path: Path, read: Any) -> None:
    got = read(write(tmp_path, '{"prompt": "a", "x": {"k": 1, "k": 2}, "prompt": "b"}'), ["prompt"])
    assert got.values == [{"prompt": "b"}]
    assert got.table.to_pylist() == [{"prompt": "b", "x": {"k": 2}}]


def test_lone_surrogates_become_replacement_characters(tmp_path: Path, read: Any) -> None:
    line = '{"prompt": "a\\ud800b", "k\\uDFFF": ["\\udc00"], "ok": "\\ud83d\\ude00"}'
    got = read(write(tmp_path, line), ["prompt", "ok"])
    assert got.values == [{"prompt": "a\ufffdb", "ok": "😀"}]
    assert got.table.to_pylist() == [{"prompt": "a\ufffdb", "k\ufffd": ["\ufffd"], "ok": "😀"}]


def test_nan_and_infinity_are_taken(tmp_path: Path, read: Any) -> None:
    got = read(write(tmp_path, '{"x": NaN, "y": Infinity}', '{"x": 1, "y": -Infinity}'))
    first, second = got.table.to_pylist()
    assert math.isnan(first["x"])
    assert (first["y"], second) == (math.inf, {"x": 1.0, "y": -math.inf})


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        '{"a": ' + "[" * 300 + "]" * 300 + "}",
        '{"a": ' + "9" * 5000 + "}",
    ],
    ids=["open", "deep", "deeper", "digits"],
)
def test_hostile_lines_are_that_rows_error(tmp_path: Path, read: Any, line: str) -> None:
    got = read(write(tmp_path, '{"a": "x"}', line, '{"a": "y"}'), ["a"])
    assert [v["a"] for v in got.values] == ["x", None, "y"]
    assert list(got.errors) == [1]


def test_an_object_over_two_lines_does_not_swallow_the_second(tmp_path: Path, read: Any) -> None:
    got = read(write(tmp_path, '{"a": "x",', '"b": "y"}', '{"a": "z"}'), ["a"])
    assert [v["a"] for v in got.values] == [None, None, "z"]
    assert list(got.errors) == [0, 1]


def test_a_huge_line_is_one_row(tmp_path: Path, read: Any) -> None:
    text = "ü" * 20_000_000
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"prompt": text}, ensure_ascii=False) + '\n{"prompt": "x"}\n', "utf-8")
    assert [len(v["prompt"]) for v in read(str(path), ["prompt"]).values] == [20_000_000, 1]


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_of_several_members_is_read_whole(tmp_path: Path, read: Any, suffix: str) -> None:
    lines = [json.dumps({"prompt": f"row {i}"}).encode() + b"\n" for i in range(3000)]
    cut = len(lines[0]) // 2  # a member may end within a line
    data = b"".join(lines)
    path = tmp_path / f"in.jsonl{suffix}"
    compress = COMPRESS[suffix]
    path.write_bytes(compress(data[:cut]) + compress(b"") + compress(data[cut:]))
    assert [v["prompt"] for v in read(str(path), ["prompt"]).values] == [f"row {i}" for i in range(3000)]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_truncated_compressed_file_is_named(tmp_path: Path, read: Any, suffix: str) -> None:
    rng = __import__("random").Random(1)
    data = b"".join(json.dumps({"p": f"{rng.random()}{rng.random()}"}).encode() + b"\n" for _ in range(40_000))
    whole = COMPRESS[suffix](data)
    path = tmp_path / f"in.jsonl{suffix}"
    path.write_bytes(whole[:-20])
    with pytest.raises(JobError, match=r"in\.jsonl") as caught:
        read(str(path), ["p"])
    assert "cut off" in str(caught.value)
    path.write_bytes(whole[:50])
    with pytest.raises(UsageError, match=r"in\.jsonl"):
        open_input([str(path)])
    path.write_bytes(b"no such thing" * 10)
    with pytest.raises(UsageError, match="broken compressed data"):
        open_input([str(path)])


@pytest.mark.parametrize(
    ("head", "says"),
    [(gzip.compress(b"{}", mtime=0), "gzip"), (b"PAR1....", "Parquet"), ('{"a":1}'.encode("utf-16"), "UTF-16")],
    ids=["gzip", "Parquet", "UTF-16"],
)
def test_a_file_that_is_not_text_is_refused_with_a_reason(tmp_path: Path, head: bytes, says: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(head)
    with pytest.raises(UsageError, match=says):
        open_input([str(path)])


def test_a_json_file_may_be_one_array(tmp_path: Path, read: Any) -> None:
    records = [{"prompt": f"line\n{i}", "tags": ["[", "]"], "n": i} for i in range(5000)]
    path = tmp_path / "in.json"
    path.write_text("\ufeff \n" + json.dumps(records, indent=2), "utf-8")
    got = read(str(path), ["prompt", "n"])
    assert [v["n"] for v in got.values] == list(range(5000))
    assert got.values[7]["prompt"] == "line\n7"
    path.write_text("[]")
    assert read(str(path)).rows == []
    path.write_text('[{"a": 1}, 5, {"a": 2}]')
    assert list(read(str(path)).errors) == [1]
    path.write_text('[{"a": 1}')
    with pytest.raises(UsageError, match=r"in\.json"):
        open_input([str(path)])


def test_row_ids_count_before_skip_limit_and_shard(tmp_path: Path, read: Any) -> None:
    lines = [json.dumps({"i": i}) if i % 5 else "broken" for i in range(5000)]
    path = write(tmp_path, *lines)
    selection = Selection(skip=10, limit=4000, shard_index=1, num_shards=3)
    got = read(path, ["i"], selection=selection, done=set(range(2000)))
    assert got.ids == [i for i in range(2000, 4010) if i % 3 == 1]
    assert [v["i"] for v in got.values] == [i if i % 5 else None for i in got.ids]
    assert sorted(got.errors) == [i for i in got.ids if i % 5 == 0]


def test_rows_after_a_limit_are_not_read(tmp_path: Path) -> None:
    def endless() -> Any:
        for i in range(10**9):
            assert i < 3000, "read on past the limit"
            yield b'{"a": 1}\n'

    source = JsonlSource("x", endless, dict)
    wanted = Wanted(Selection(limit=2000), lambda row_id: False)
    assert sum(len(piece.row_ids) for piece in source.pieces(0, wanted, pa.schema([]))) == 2000


def test_the_schema_is_known_from_the_first_thousand_rows_and_later_keys_are_kept(tmp_path: Path, read: Any) -> None:
    lines: list[Any] = [{"a": None} for _ in range(999)] + [{"a": "x", "b": 1}] + [{"a": "y"}] * 500 + [{"late": [1.5]}]
    source = open_input([write(tmp_path, *lines)])
    assert source.schema == pa.schema([("a", pa.string()), ("b", pa.int64())])
    table = read(source).table
    assert table.schema.names == ["a", "b", "late"]
    assert table.column("late").to_pylist()[-2:] == [None, [1.5]]
    assert table.column("a").type == pa.string()


def test_needed_values_are_the_json_values_themselves(tmp_path: Path, read: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "name": "x"}]
    got = read(write(tmp_path, {"messages": messages, "n": 2**70, "d": "2024-01-01"}), ["messages", "n", "d", "none"])
    assert got.values == [{"messages": messages, "n": 2**70, "d": "2024-01-01", "none": None}]


def test_a_file_that_vanishes_or_shrinks_stops_the_job_and_is_named(tmp_path: Path) -> None:
    path = Path(write(tmp_path, *[{"prompt": "x" * 3000} for _ in range(5000)]))
    source = open_input([str(path)])
    rows = source.rows(["prompt"], selection=Selection(), skip=lambda row_id: False)
    next(rows)
    with path.open("r+b") as file:
        file.truncate(5_000_000)
    with pytest.raises(JobError, match=r"in\.jsonl.*cut"):
        list(rows)
    path.unlink()
    with pytest.raises(JobError, match=r"in\.jsonl.*gone"):
        list(source.rows([], selection=Selection(), skip=lambda row_id: False))


def test_what_is_appended_while_reading_is_not_part_of_the_job(tmp_path: Path) -> None:
    path = Path(write(tmp_path, *[{"i": i} for i in range(10)]))
    rows = open_input([str(path)]).rows([], selection=Selection(), skip=lambda row_id: False)
    first = next(rows)
    with path.open("a") as file:
        file.write('{"i": 10}\n')
    assert [first.row_id, *[row.row_id for row in rows]] == list(range(10))


def test_memory_stays_flat_over_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps({"prompt": f"row {i} " * 20}) + "\n" for i in range(40_000))
    rows = open_input([str(path)]).rows(["prompt"], selection=Selection(), skip=lambda row_id: False)
    tracemalloc.start()
    try:
        for _ in range(5_000):
            next(rows)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for row in rows:
            assert row.error is None
        assert (
            tracemalloc.get_traced_memory()[1] - before < 8 << 20
        )  # the batches in hand; the file has 7 MB, its values four times that
    finally:
        tracemalloc.stop()


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.sampled_from(["x", "y", "z"]), VALUES, max_size=3), max_size=12)


def same(got: Any, value: Any) -> bool:
    """Whether a column's value is the JSON value: absent keys of objects count as null, and int and float may meet."""
    if isinstance(value, dict):
        return isinstance(got, dict) and all(same(got.get(key), value.get(key)) for key in got.keys() | value.keys())
    if isinstance(value, list):
        return isinstance(got, list) and len(got) == len(value) and all(map(same, got, value))
    return bool(got == value) and isinstance(got, bool) == isinstance(value, bool)


@given(RECORDS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_value_comes_back_from_its_column(records: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    source = JsonlSource("x", lambda: iter([text]), dict)
    source.sample(pa.schema([]))
    wanted = Wanted(Selection(), lambda row_id: False)
    for piece in source.pieces(0, wanted, source.schema):
        for name, field in zip(piece.batch.schema.names, piece.batch.schema, strict=True):
            is_json = (field.metadata or {}).get(b"offgen:column") == b"json"
            for record, got in zip(records, piece.batch.column(name).to_pylist(), strict=True):
                value = record.get(name)
                assert same(json.loads(got) if is_json and got is not None else got, value)
