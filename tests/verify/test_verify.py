"""`offgen verify` finds a missing row, a row that is there twice, a flipped byte, a cut file, and another input."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offgen.errors import UsageError
from offgen.records import Completion, Row, RowError
from offgen.verify import verify_output
from offgen.writers import OutputOptions, open_output
from offgen.writers.options import AllRows

NUM_ROWS = 12
TABLE = pa.table({
    "id": [f"id-{place}" for place in range(NUM_ROWS)],
    "prompt": [f"p{place}" for place in range(NUM_ROWS)],
    "x": [1.5, float("nan"), None] * 4,
})  # fmt: skip
NAMES = ["out/", "lines/", "batch/", "out.parquet", "out.arrow", "out.jsonl", "out.jsonl.gz", "out.jsonl.zst"]


def write(target: Path, *, rows: int = NUM_ROWS, **options: Any) -> None:
    formats = {"lines": "jsonl", "batch": "openai-batch"}
    shape = OutputOptions(**{"rows_per_shard": 5, "format": formats.get(target.name), **options})
    output = open_output(str(target) if target.suffix else f"{target}/", shape, TABLE.schema)
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    batch = TABLE.combine_chunks().to_batches()[0]
    chosen = shape.selection
    selected = [row_id for row_id in range(rows) if row_id % chosen.num_shards == chosen.shard_index]
    for row_id in selected:
        row = Row(row_id, batch, row_id, {}, "")
        for sample in range(shape.num_samples):
            if row_id == 3:
                output.write(Completion(row, sample, shape.num_samples, error=RowError("bad_row", "no")))
            else:
                output.write(Completion(row, sample, shape.num_samples, f"t{row_id}", "stop"))
    output.end_of_input(len(selected))
    output.finish()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.parquet"
    pq.write_table(TABLE, path)
    return str(path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"num_samples": 2}, {"row_order": "finish"}, {"column_prefix": "o_"}])
def test_a_sound_output_is_called_so(tmp_path: Path, source: str, name: str, options: dict[str, Any]) -> None:
    write(tmp_path / name, **options)
    for inputs in ([], [source]):
        verdict = verify_output(str(tmp_path / name), inputs)
        assert verdict.problems == []
        assert verdict.num_errors >= 1


@pytest.mark.parametrize("name", ["out.parquet", "out.arrow", "out.jsonl", "out.jsonl.gz", "out.jsonl.zst"])
def test_any_flipped_byte_is_found(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    path = tmp_path / name
    data = path.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 20)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
        assert any("checksum" in problem for problem in verify_output(str(path)).problems)
    path.write_bytes(data)
    assert verify_output(str(path)).is_sound


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_file_is_found(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    path = tmp_path / name
    victim = path if path.is_file() else sorted(path.glob("part-*"))[1]
    victim.write_bytes(victim.read_bytes()[:-5])
    problems = verify_output(str(path)).problems
    assert any("bytes" in problem and victim.name in problem for problem in problems)


def test_a_missing_and_a_double_row_are_named(tmp_path: Path, source: str) -> None:
    write(tmp_path / "out.jsonl")
    path = tmp_path / "out.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[3], *lines[5:]]) + "\n")
    problems = "\n".join(verify_output(str(path), [source], id_column="id").problems)
    assert "1 row is missing: row_id 4 (id id-4)" in problems
    assert "1 row is there more than once: row_id 3 (id id-3)" in problems


def test_a_folder_without_one_of_its_parts_is_found(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / "part-00001.parquet").unlink()
    problems = "\n".join(verify_output(str(tmp_path / "out")).problems)
    assert "part-00001.parquet is missing" in problems and "5 rows are missing" in problems


def test_a_part_too_many_is_found(tmp_path: Path) -> None:
    write(tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("part-*"))
    (tmp_path / "out" / "part-00009.parquet").write_bytes(parts[0].read_bytes())
    problems = "\n".join(verify_output(str(tmp_path / "out")).problems)
    assert "part-00009.parquet" in problems and "more than once" in problems


def test_an_unfinished_job_is_not_sound(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / "_SUCCESS").unlink()
    assert "not finished" in "\n".join(verify_output(str(tmp_path / "out")).problems)


@pytest.mark.parametrize("name", ["out/", "out.jsonl", "out.arrow"])
def test_another_input_is_told_apart(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    longer, other = tmp_path / "longer.parquet", tmp_path / "other.parquet"
    pq.write_table(pa.concat_tables([TABLE, TABLE]), longer)
    changed = TABLE.set_column(1, "prompt", pa.array([f"p{place}" if place != 7 else "q" for place in range(NUM_ROWS)]))
    pq.write_table(changed, other)
    assert "12 rows" in "\n".join(verify_output(str(tmp_path / name), [str(longer)]).problems)
    problems = "\n".join(verify_output(str(tmp_path / name), [str(other)]).problems)
    assert "1 rows differ from the input: row_id 7: `prompt`" in problems


def test_shards_are_checked_together(tmp_path: Path, source: str) -> None:
    for index in range(3):
        write(tmp_path / "out", selection=AllRows(num_shards=3, shard_index=index))
    verdict = verify_output(str(tmp_path / "out"), [source])
    assert verdict.problems == [] and verdict.num_rows == NUM_ROWS
    import shutil

    shutil.rmtree(tmp_path / "out" / "shard-1-of-3")
    assert "shards 1 of 3 are missing" in "\n".join(verify_output(str(tmp_path / "out"), [source]).problems)
    shutil.rmtree(tmp_path / "out" / "shard-0-of-3")
    assert "shards 0, 1 of 3 are missing" in "\n".join(verify_output(str(tmp_path / "out") + "/").problems)
    assert verify_output(str(tmp_path / "out" / "shard-2-of-3"), [source]).is_sound


def test_what_is_not_offgens_cannot_be_verified(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    for name in ("some", "none", "none.parquet"):
        with pytest.raises(UsageError):
            verify_output(str(tmp_path / name))


def test_a_lost_run_json_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / "_offgen" / "run.json").write_text("garbage")
    assert not verify_output(str(tmp_path / "out")).is_sound


def test_jsonl_gz_stays_one_member_that_gzip_reads(tmp_path: Path) -> None:
    write(tmp_path / "out.jsonl.gz")
    rows = [json.loads(line) for line in gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).splitlines()]
    assert [row["row_id"] for row in rows] == list(range(NUM_ROWS))


@pytest.mark.parametrize(("damage", "code"), [(lambda path: None, 0), (lambda path: path.write_bytes(b"x"), 1)])
def test_the_command_tells_by_its_exit_code(tmp_path: Path, damage: Callable[[Path], Any], code: int) -> None:
    write(tmp_path / "out.parquet")
    damage(tmp_path / "out.parquet")
    command = [sys.executable, "-m", "offgen", "verify", str(tmp_path / "out.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("all well" in done.stdout) == (code == 0)
    missing = subprocess.run([*command[:-1], str(tmp_path / "none")], capture_output=True, text=True, check=False)
    assert missing.returncode == 2


def test_columns_of_every_type_are_compared(tmp_path: Path) -> None:
    views = pa.array(["a" * 20, None, "b", "c", "d"], pa.string_view())
    table = pa.table({"prompt": pa.array(["p", "q", "r", "s", "t"]), "view": views})
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as file:
        file.write_table(table)
    options = OutputOptions(num_samples=2)  # two output rows an input row: no slice of the input gives them
    output = open_output(str(tmp_path / "out.parquet"), options, table.schema)
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    for row_id in range(5):
        row = Row(row_id, table.to_batches()[0], row_id, {}, "")
        for sample in range(2):
            output.write(Completion(row, sample, 2, "t", "stop"))
    output.end_of_input(5)
    output.finish()
    assert verify_output(str(tmp_path / "out.parquet"), [str(tmp_path / "in.arrow")]).problems == []
