from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest

from offgen.errors import UsageError
from offgen.readers import Selection, open_input

TABLE = pa.table(
    {
        "prompt": [f"row {i}" for i in range(5000)],
        "list": [[i] * (i % 3) for i in range(5000)],
        "tag": pa.array(["a", "b"] * 2500).dictionary_encode(),
    }
)


def write(path: Path, kind: str) -> None:
    if kind.startswith("feather"):
        table = TABLE if kind == "feather-2" else TABLE.select(["prompt"])
        pyarrow.feather.write_feather(table, path, version=int(kind[-1]))
        return
    options = pa.ipc.IpcWriteOptions(compression="zstd" if kind.endswith("zstd") else None)
    make = pa.ipc.new_file if kind.startswith("file") else pa.ipc.new_stream
    with make(path, TABLE.schema, options=options) as writer:
        writer.write_table(TABLE, max_chunksize=3000)


@pytest.mark.parametrize("kind", ["file", "file-zstd", "stream", "stream-zstd", "feather-2"])
def test_files_and_streams_are_told_apart(tmp_path: Path, read: Any, kind: str) -> None:
    path = tmp_path / "in.arrow"
    write(path, kind)
    source = open_input([str(path)])
    assert source.num_rows == 5000
    got = read(source, ["prompt", "tag"])
    assert got.ids == list(range(5000))
    assert got.values[4999] == {"prompt": "row 4999", "tag": "b"}
    assert got.table.to_pylist() == TABLE.to_pylist()
    assert max(row.record.num_rows for row in got.rows) <= 1024
    some = read(source, ["prompt"], selection=Selection(skip=2990, limit=30, shard_index=0, num_shards=10))
    assert [v["prompt"] for v in some.values] == ["row 2990", "row 3000", "row 3010"]


@pytest.mark.filterwarnings("ignore:Feather V1")
def test_the_old_feather_format_is_read(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "in.feather"
    try:
        write(path, "feather-1")
    except (ValueError, pa.ArrowException):
        pytest.skip("this pyarrow writes no Feather V1")
    assert len(read(str(path)).rows) == 5000


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("keep", [0, 5, 200, -100])
def test_a_truncated_file_is_named_at_open(tmp_path: Path, kind: str, keep: int) -> None:
    path = tmp_path / "in.arrow"
    write(path, kind)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"in\.arrow: cannot be read as Arrow"):
        open_input([str(path)])


def test_zero_rows_are_a_valid_input(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "in.arrow"
    with pa.ipc.new_file(path, TABLE.schema):
        pass
    source = open_input([str(path)])
    assert (source.num_rows, source.schema.names, read(source).rows) == (0, TABLE.schema.names, [])
