"""Columns that are null at first, come late or change their type: no crash hours in, and one schema in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offgen.records import Completion, Row
from offgen.writers import OutputOptions, open_output

FIRST = {"prompt": ["a", "b"], "license": [None, None], "meta": [1, 2], "tags": [[], []]}
SECOND = {"prompt": ["c", "d"], "license": ["mit", None], "meta": ["x", "y"], "tags": [["t"], []], "late": [None, 1.5]}
THIRD = {"prompt": ["e"], "license": [None], "meta": [{"k": [1]}], "tags": [None], "error": ["theirs"], "ant": [True]}


def write(target: str, batches: list[dict[str, Any]], order: list[int], *, stop: int = 0) -> None:
    """The rows in the given finishing order, in two runs if `stop` is given."""
    made = [pa.RecordBatch.from_pydict(one) for one in batches]
    rows = [Row(0, batch, index, {}, "") for batch in made for index in range(batch.num_rows)]
    rows = [Row(place, row.record, row.index, {}, "") for place, row in enumerate(rows)]
    for part in [order[:stop], order[stop:]] if stop else [order]:
        options = OutputOptions(rows_per_shard=2, format="jsonl" if target.endswith("lines/") else None)
        output = open_output(target, options, made[0].schema)
        output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
        for place in part:
            output.write(Completion(rows[place], text=f"t{place}", finish_reason="stop"))
        if part is order or part == order[stop:]:
            output.end_of_input(len(rows))
            output.finish()
        output.close()


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_any_order_and_any_stop_gives_the_same_folder(tmp_path: Path, order: list[int], stop: int) -> None:
    write(f"{tmp_path}/clean/", [FIRST, SECOND, THIRD], [0, 1, 2, 3, 4])
    write(f"{tmp_path}/out/", [FIRST, SECOND, THIRD], order, stop=stop)
    clean, parts = sorted((tmp_path / "clean").glob("part-*")), sorted((tmp_path / "out").glob("part-*"))
    assert [path.read_bytes() for path in clean] == [path.read_bytes() for path in parts]
    schemas = {str(pq.read_schema(path)) for path in parts}
    assert len(schemas) == 1
    rows = pa.concat_tables([pq.read_table(path) for path in parts])
    assert rows["license"].to_pylist() == [None, None, "mit", None, None]
    assert rows["meta"].to_pylist() == ["1", "2", '"x"', '"y"', '{"k": [1]}']
    assert rows["tags"].to_pylist() == [[], [], ["t"], [], None]
    assert rows["late"].to_pylist() == [None, None, None, 1.5, None]
    assert rows["error_input"].to_pylist() == [None] * 4 + ["theirs"]  # a late key with the name of one of ours
    assert rows["error"].to_pylist() == [None] * 5
    assert rows.schema.names[:7] == ["prompt", "license", "meta", "tags", "ant", "error_input", "late"]


@pytest.mark.parametrize("name", ["out.parquet", "out.arrow", "out.jsonl"])
def test_single_files_hold_the_widest_schema(tmp_path: Path, name: str) -> None:
    write(f"{tmp_path}/{name}", [FIRST, SECOND, THIRD], [4, 0, 1, 2, 3], stop=2)
    if name.endswith("jsonl"):
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert [row["meta"] for row in rows] == ["1", "2", '"x"', '"y"', '{"k": [1]}']
        assert all(list(row) == list(rows[0]) for row in rows)
    else:
        table = pq.read_table(tmp_path / name) if "parquet" in name else pa.ipc.open_file(tmp_path / name).read_all()
        assert table["meta"].to_pylist() == ["1", "2", '"x"', '"y"', '{"k": [1]}']


def test_lines_written_narrower_are_rewritten(tmp_path: Path) -> None:
    write(f"{tmp_path}/lines/", [FIRST, SECOND, THIRD], [0, 1, 2, 3, 4])
    rows = [json.loads(line) for path in sorted((tmp_path / "lines").glob("part-*")) for line in path.open()]
    assert len(rows) == 5 and all(list(row) == list(rows[0]) for row in rows)
    assert not list((tmp_path / "lines" / "_offgen" / "parts").iterdir())


def test_structs_that_grow_keep_one_order_of_fields(tmp_path: Path) -> None:
    one = {"prompt": ["a", "b"], "s": [{"x": 1}, {"x": 2}]}
    two = {"prompt": ["c", "d"], "s": [{"z": 1, "x": 3}, None]}
    three = {"prompt": ["e", "f"], "s": [{"y": [{"q": 1}]}, {"x": 1.5}]}
    for name, order in (("a.parquet", [0, 1, 2, 3, 4, 5]), ("b.parquet", [5, 4, 3, 2, 1, 0])):
        write(f"{tmp_path}/{name}", [one, two, three], order, stop=2)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    values = pq.read_table(tmp_path / "a.parquet")["s"].to_pylist()
    assert values[2] == {"x": 3.0, "y": None, "z": 1} and values[4]["y"] == [{"q": 1}]


def test_an_empty_object_is_no_obstacle(tmp_path: Path) -> None:
    one = {"prompt": ["a", "b"], "s": [None, None]}
    batches = [pa.RecordBatch.from_pydict(one)]
    late = pa.record_batch([pa.array(["c", "d"]), pa.array([{}, None], pa.struct([]))], names=["prompt", "s"])
    rows = [Row(place, batch, place % 2, {}, "") for place, batch in enumerate([*batches * 2, late, late])]
    output = open_output(f"{tmp_path}/out/", OutputOptions(rows_per_shard=2), batches[0].schema)
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    for row in rows:
        output.write(Completion(row, text="t", finish_reason="stop"))
    output.end_of_input(4)
    output.finish()
    assert pq.read_table(tmp_path / "out")["prompt"].to_pylist() == ["a", "b", "c", "d"]
