"""What an output looks like: columns, types, order, and what is refused before anything is written."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from writer_jobs import Job, read_folder, table_of

from offgen.errors import UsageError
from offgen.records import Completion, RequestStats, Row, TokenLogprob
from offgen.writers import OutputOptions, open_output

MakeJob = Callable[..., Job]


def test_input_columns_come_first_and_unchanged_then_ours(job: MakeJob) -> None:
    table = table_of(5, when=pa.array([datetime.date(2024, 1, 1)] * 5), price=pa.array([decimal.Decimal("1.20")] * 5))
    made = job("out.parquet", table=table)
    made.run()
    written = pq.read_table(made.target)
    assert written.schema.names == [
        "prompt", "when", "price", "row_id", "completion", "finish_reason", "stop_reason", "prompt_tokens",
        "completion_tokens", "error", "stats",
    ]  # fmt: skip
    assert written.select(table.schema.names).equals(table)
    assert written.schema.field("row_id").type == pa.int64()
    assert written.schema.field("prompt_tokens").type == pa.int32()
    assert written.schema.field("error").type == pa.string()
    assert [field.name for field in written.schema.field("stats").type] == [
        "queue_s", "ttft_s", "tpot_s", "e2e_s", "cached_tokens", "num_preemptions", "truncated",
    ]  # fmt: skip


def test_rows_stand_in_input_order_however_they_finish(job: MakeJob) -> None:
    def shuffled(rows: Any) -> Any:
        rows = list(rows)
        random.Random(0).shuffle(rows)
        return rows

    made = job("out/", num_rows=50, order=shuffled)
    made.run()
    rows = read_folder(made.target)
    assert rows["row_id"].to_pylist() == list(range(50))
    assert rows["prompt"].to_pylist() == [f"prompt {place}" for place in range(50)]
    assert rows["completion"].to_pylist() == [f"text {place}.0" for place in range(50)]


def test_finish_order_is_kept_within_a_shard(job: MakeJob) -> None:
    made = job("out/", num_rows=8, order=lambda rows: rows[::-1], options={"row_order": "finish"})
    made.run()
    assert read_folder(made.target)["row_id"].to_pylist() == [3, 2, 1, 0, 7, 6, 5, 4]


@pytest.mark.parametrize("name", ["out/", "out.parquet", "out.arrow", "out.jsonl", "out.jsonl.gz", "out.jsonl.zst"])
def test_an_empty_input_makes_an_empty_output(job: MakeJob, name: str) -> None:
    made = job(name, num_rows=0)
    totals = made.run()
    assert totals is not None and totals.rows == 0
    target = Path(made.target)
    if name == "out/":
        assert read_folder(target).num_rows == 0 and (target / "_SUCCESS").exists()
        assert "completion" in read_folder(target).schema.names
    else:
        assert target.exists()
    if name == "out.parquet":
        assert pq.read_table(target).schema.names[0] == "prompt"


def test_one_row_for_each_sample(job: MakeJob) -> None:
    made = job("out.parquet", num_rows=5, options={"num_samples": 3, "with_token_ids": True})
    totals = made.run()
    rows = pq.read_table(made.target)
    assert rows["row_id"].to_pylist() == [row for row in range(5) for _ in range(3)]
    assert rows["sample_index"].to_pylist() == [0, 1, 2] * 5
    assert rows["completion_token_ids"].to_pylist()[4] == [1, 1]
    assert totals is not None and (totals.rows, totals.num_input_rows) == (15, 5)


def test_a_row_is_done_when_all_its_samples_are(job: MakeJob) -> None:
    made = job("out/", num_rows=1, options={"num_samples": 2})
    output = made.open()
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    row = Row(0, made.table.to_batches()[0], 0, {}, "")
    output.write(Completion(row, 1, 2, "b", "stop"))
    output.close()
    again = made.open()
    state = again.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    assert state.num_done_rows == 0 and not again.is_done(0)
    again.close()


@pytest.mark.parametrize("name", ["completion", "error", "row_id", "stats"])
def test_a_clash_is_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    schema = pa.schema([("prompt", pa.string()), (name, pa.string())])
    with pytest.raises(UsageError, match=name) as caught:
        open_output(str(tmp_path / "out/"), OutputOptions(), schema)
    assert "--column-prefix" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())
    open_output(str(tmp_path / "out/"), OutputOptions(column_prefix="gen_"), schema)
    open_output(str(tmp_path / "out/"), OutputOptions(drop_columns=(name,)), schema)


def test_our_optional_columns_clash_only_when_asked_for(tmp_path: Path) -> None:
    schema = pa.schema([("prompt", pa.string()), ("logprobs", pa.string()), ("sample_index", pa.int32())])
    open_output(str(tmp_path / "out/"), OutputOptions(), schema)
    with pytest.raises(UsageError, match="sample_index"):
        open_output(str(tmp_path / "out/"), OutputOptions(num_samples=2), schema)


def test_a_prefix_names_every_column_of_ours(job: MakeJob) -> None:
    made = job(
        "out.parquet", num_rows=3, table=table_of(3, completion=["a", "b", "c"]), options={"column_prefix": "x_"}
    )
    made.run()
    rows = pq.read_table(made.target)
    assert rows["completion"].to_pylist() == ["a", "b", "c"]
    assert rows["x_completion"].to_pylist() == ["text 0.0", "text 1.0", "text 2.0"]
    assert all(name.startswith("x_") for name in rows.schema.names[2:])


def test_columns_are_chosen_and_dropped(job: MakeJob) -> None:
    table = table_of(3, a=[1, 2, 3], b=[4, 5, 6])
    for name, options, kept in (
        ("1.parquet", {"columns": ("b",)}, ["b"]),
        ("2.parquet", {"drop_columns": ("b", "prompt")}, ["a"]),
        ("3.parquet", {"columns": ()}, []),
    ):
        made = job(name, table=table, options=options)
        made.run()
        assert pq.read_table(made.target).schema.names[: len(kept) + 1] == [*kept, "row_id"]
        assert pq.read_table(made.target).num_rows == 3


@pytest.mark.parametrize("options", [{"columns": ("nope",)}, {"drop_columns": ("nope",)}])
def test_an_unknown_column_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="nope"):
        open_output(str(tmp_path / "out/"), OutputOptions(**options), table_of(1).schema)


def test_two_input_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("a", pa.int64())])
    with pytest.raises(UsageError, match="two columns `a`"):
        open_output(str(tmp_path / "out/"), OutputOptions(), schema)


def test_a_type_that_parquet_has_no_place_for_is_refused_up_front(tmp_path: Path) -> None:
    schema = pa.schema([("prompt", pa.string()), ("span", pa.month_day_nano_interval())])
    with pytest.raises(UsageError, match="span"):
        open_output(str(tmp_path / "out/"), OutputOptions(), schema)
    open_output(str(tmp_path / "out.jsonl"), OutputOptions(), schema)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("out.csv", {}), ("out.json", {}), ("out.jsonl.bz2", {}), ("s3://bucket/out/", {}),
        ("out.jsonl", {"format": "parquet"}), ("out.parquet", {"format": "openai-batch"}), ("-", {"format": "arrow"}),
        ("out/", {"format": "csv"}),
    ],
)  # fmt: skip
def test_names_and_formats_that_do_not_go_together(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    where = name if name == "-" or "://" in name else f"{tmp_path}/{name}"
    with pytest.raises(UsageError):
        open_output(where, OutputOptions(**options), table_of(1).schema)


TYPES = {
    "large_string": pa.array(["a", None, "c"], pa.large_string()),
    "string_view": pa.array(["a", None, "a text that is longer than twelve"], pa.string_view()),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "decimal": pa.array([decimal.Decimal("1.50"), None, None]),
    "timestamp": pa.array([datetime.datetime(2024, 1, 1, 12), None, None], pa.timestamp("us", "UTC")),
    "list": pa.array([[1, None], None, []]),
    "struct": pa.array([{"a": 1, "b": [{"c": "x"}]}, None, {"a": None, "b": []}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "binary": pa.array([b"\x00\xff", None, b""]),
    "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
    "null": pa.nulls(3),
    "nan": pa.array([float("nan"), float("inf"), None]),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
}


@pytest.mark.parametrize("name", ["out/", "out.parquet", "out.arrow"])
@pytest.mark.parametrize("kind", TYPES)
def test_input_columns_keep_type_and_value(job: MakeJob, name: str, kind: str) -> None:
    column = pa.concat_arrays([TYPES[kind]] * 4)
    made = job(name, table=table_of(12, value=column), order=lambda rows: rows[::-1], options={"rows_per_shard": 5})
    made.run(stop_after=4)
    made.run()
    if name == "out.arrow":
        written = pa.ipc.open_file(made.target).read_all()
    else:
        written = read_folder(made.target) if name == "out/" else pq.read_table(made.target)
    assert written.schema.field("value").type == column.type
    assert repr(written["value"].to_pylist()) == repr(column.to_pylist())


def test_logprobs_are_null_where_there_is_none_and_never_infinite(job: MakeJob) -> None:
    made = job("out.parquet", num_rows=2, options={"with_logprobs": True, "with_prompt_logprobs": True})
    output = made.open()
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    batch = made.table.to_batches()[0]
    token = TokenLogprob(7, -0.5, 1, ((7, -0.5), (8, float("-inf"))))
    odd = TokenLogprob(9, float("nan"), 40, ())
    output.write(
        Completion(Row(0, batch, 0, {}, ""), text="x", finish_reason="stop", logprobs=[token, odd],
                   prompt_logprobs=[None, token], stats=RequestStats())
    )  # fmt: skip
    output.write(Completion(Row(1, batch, 1, {}, ""), text="", finish_reason="stop"))
    output.end_of_input(2)
    output.finish()
    rows = pq.read_table(made.target).to_pylist()
    assert rows[0]["logprobs"] == [
        {"token_id": 7, "logprob": -0.5, "rank": 1,
         "top": [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": None}]},
        {"token_id": 9, "logprob": None, "rank": 40, "top": []},
    ]  # fmt: skip
    assert rows[0]["prompt_logprobs"][0] is None and rows[0]["prompt_logprobs"][1]["token_id"] == 7
    assert rows[1]["logprobs"] is None


def test_text_that_utf8_cannot_hold_is_mended(job: MakeJob) -> None:
    made = job("out.parquet", num_rows=1)
    output = made.open()
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    row = Row(0, made.table.to_batches()[0], 0, {}, "")
    output.write(Completion(row, text="a\ud83d\ude00b\ud800c", finish_reason="stop"))
    output.end_of_input(1)
    output.finish()
    assert pq.read_table(made.target)["completion"].to_pylist() == ["a😀b\ufffdc"]


def test_row_groups_are_few_and_bounded(job: MakeJob) -> None:
    made = job("out.parquet", num_rows=3000, options={"rows_per_shard": 100, "flush_interval_s": 0.001})
    made.run()
    assert pq.ParquetFile(made.target).num_row_groups == 1
