"""`offgen run` on the echo model: exit codes, streams, resume, options that name files."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest


def report_of(path):
    return json.loads((path / "report.json").read_text())


def test_a_file_is_turned_into_a_file_with_its_report(offgen, prompts, tmp_path):
    prompts(30)
    run = offgen("run", "in.jsonl", "-o", "out.parquet", "--model", "echo", check=0)
    assert run.stdout == ""
    assert "first prompt:\n  | prompt 0" in run.stderr
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["completion"].to_pylist() == [f"prompt {i}" for i in range(30)]
    assert table["k"].to_pylist() == list(range(30))
    report = report_of(tmp_path / "out.parquet.offgen")
    keys = (
        "rows errors prompt_tokens completion_tokens cached_tokens load_s run_s wall_s runs completion_tokens_per_s"
        " total_tokens_per_s queue_s ttft_s tpot_s e2e_s steps bubble_ratio num_preemptions recomputed_tokens kv_blocks"
        " kv_blocks_peak peak_rss_bytes peak_device_bytes device dtype versions model commit timeline"
    )
    assert set(keys.split()) <= set(report)
    assert (report["rows"], report["errors"], report["runs"], report["status"]) == (30, {}, 1, "finished")
    assert set(report["ttft_s"]) == {"mean", "p50", "p90", "p99", "max"}
    record = json.loads((tmp_path / "out.parquet.offgen" / "run.json").read_text())["run"]
    assert record["first_prompt"] == "prompt 0"
    assert record["sampling"]["max_tokens"] == 512
    assert record["config"]["input"]["inputs"] == ["in.jsonl"]


def test_the_same_command_again_says_that_it_is_done(offgen, prompts):
    prompts(3)
    command = ("run", "in.jsonl", "-o", "out/", "--model", "echo")
    offgen(*command, check=0)
    again = offgen(*command, check=0)
    assert "already done" in again.stderr


def test_another_jobs_output_is_refused_and_overwritten_on_request(offgen, prompts, tmp_path):
    prompts(3)
    command = ("run", "in.jsonl", "-o", "out.jsonl", "--model", "echo")
    offgen(*command, check=0)
    refused = offgen(*command, "--max-tokens", "7", check=2)
    assert "max_tokens" in refused.stderr
    assert "--overwrite" in refused.stderr
    offgen(*command, "--max-tokens", "7", "--overwrite", check=0)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("output", ["in.jsonl/out.parquet", "in.jsonl/deep/folder/", "x" * 300 + ".jsonl", "/proc/x/"])
def test_an_output_that_cannot_be_made_there_is_wrong_usage(offgen, prompts, output):
    prompts(3)
    refused = offgen("run", "in.jsonl", "-o", output, "--model", "echo", check=2)
    assert "hint: give another output" in refused.stderr


def test_a_job_goes_on_in_the_folder_of_its_input(offgen, prompts, tmp_path):
    prompts(3)
    command = ("run", ".", "-o", "out.jsonl", "--model", "echo")
    offgen(*command, check=0)
    assert "already done" in offgen(*command, check=0).stderr
    offgen("verify", "out.jsonl", ".", check=0)
    before = (tmp_path / "in.jsonl").read_bytes()
    offgen("run", "in.jsonl", "-o", "in.jsonl", "--overwrite", "--model", "echo", check=2)
    assert (tmp_path / "in.jsonl").read_bytes() == before


def test_rows_that_fail_make_exit_3_unless_they_are_allowed(offgen, prompts, tmp_path):
    path = prompts(8)
    path.write_text(path.read_text() + '{"prompt": null}\nnot json\n')
    command = ("run", "in.jsonl", "--model", "echo")
    run = offgen(*command, "-o", "a.jsonl", check=3)
    assert "bad_row" in run.stderr
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["row_id"] for row in rows] == list(range(10))
    assert rows[9]["error"].startswith("bad_row: in.jsonl:10")
    assert report_of(tmp_path / "a.jsonl.offgen")["errors"] == {"bad_row": 2}
    offgen(*command, "-o", "a.jsonl", check=3)
    offgen(*command, "-o", "a.jsonl", "--allow-errors", "2", check=0)
    offgen(*command, "-o", "a.jsonl", "--allow-errors", "20%", check=0)
    offgen(*command, "-o", "a.jsonl", "--allow-errors", "19%", check=3)


def test_too_many_errors_stop_the_job_and_it_can_go_on(offgen, prompts, tmp_path):
    path = prompts(20)
    path.write_text("bad\n" * 5 + path.read_text())
    stopped = offgen("run", "in.jsonl", "-o", "out.jsonl", "--model", "echo", "--max-errors", "3", check=1)
    assert "--max-errors 3" in stopped.stderr
    assert "same command" in stopped.stderr
    assert not (tmp_path / "out.jsonl").exists()
    offgen("run", "in.jsonl", "-o", "out.jsonl", "--model", "echo", "--max-errors", "50%", check=3)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(row["row_id"] for row in rows) == list(range(25))
    assert report_of(tmp_path / "out.jsonl.offgen")["runs"] == 2


def test_stdout_carries_data_and_nothing_else(offgen, prompts):
    prompts(5)
    run = offgen("run", "in.jsonl", "-o", "-", "--model", "echo", check=0)
    assert [json.loads(line)["k"] for line in run.stdout.splitlines()] == list(range(5))
    assert "5 rows" in run.stderr


def test_stdin_is_read_as_jsonl(offgen, tmp_path):
    lines = "".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(4))
    run = offgen("run", "-", "-o", "-", "--model", "echo", "--quiet", stdin=lines, check=0)
    assert [json.loads(line)["completion"] for line in run.stdout.splitlines()] == ["p0", "p1", "p2", "p3"]
    assert run.stderr == ""
    offgen("run", "-", "-o", "out.parquet", "--model", "echo", stdin=lines, check=0)
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 4


def test_no_rows_make_an_empty_output(offgen, tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    offgen("run", "in.jsonl", "-o", "out.parquet", "--model", "echo", check=0)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 0
    assert {"row_id", "completion", "finish_reason", "error", "stats"} <= set(table.column_names)


def test_shards_lie_in_one_folder_and_report_adds_them_up(offgen, prompts, tmp_path):
    prompts(10)
    for index in range(2):
        offgen("run", "in.jsonl", "-o", "out", "--model", "echo", "--shard", f"{index}/2", check=0)
    assert (tmp_path / "out" / "shard-1-of-2" / "_SUCCESS").exists()
    report = json.loads(offgen("report", "out", "--json", check=0).stdout)
    assert report["rows"] == 10
    assert report["shards"] == {"count": 2, "missing": []}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "no output is given"),
        (("-o", "x.parquet", "--prompt-column", "nope"), "nope"),
        (("-o", "x.csv"), ".csv"),
        (("-o", "x.parquet", "--config", "nope.toml"), "nope.toml"),
        (("-o", "x.parquet", "--columns", "nope"), "nope"),
        (("-o", "x.parquet", "--id-column", "nope"), "nope"),
        (("-o", "x.parquet", "--report", "no/where.json"), "no/where.json"),
        (("-o", "x.parquet", "--metrics-file", "."), "is a folder"),
        (("-o", "x.parquet", "--max-tokens", "0"), "--max-tokens"),
        (("-o", "x.parquet", "--regex", "a+"), "not available yet"),
    ],
)
def test_wrong_usage_writes_nothing(offgen, prompts, tmp_path, args, says):
    prompts(2)
    run = offgen("run", "in.jsonl", "--model", "echo", *args, check=2)
    assert says in run.stderr
    assert "Traceback" not in run.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_a_job_file_is_read_and_flags_win(offgen, prompts, tmp_path):
    prompts(6)
    (tmp_path / "job.toml").write_text(
        'input = "in.jsonl"\noutput = "a.jsonl"\nmodel = "echo"\nlimit = 4\nno-stats = true\n'
    )
    offgen("run", "--config", "job.toml", check=0)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert "stats" not in rows[0]
    offgen("run", "--config", "job.toml", "--limit", "2", "-o", "b.jsonl", check=0)
    assert len((tmp_path / "b.jsonl").read_text().splitlines()) == 2


def test_verify_names_rows_by_the_id_column_of_the_job(offgen, prompts, tmp_path):
    prompts(3)
    offgen("run", "in.jsonl", "-o", "out.jsonl", "--model", "echo", "--id-column", "k", check=0)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    (tmp_path / "out.jsonl").write_text("\n".join(lines[:2]) + "\n")
    assert "row_id 2 (k 2)" in offgen("verify", "out.jsonl", "in.jsonl", check=1).stderr


def test_metrics_and_the_report_go_where_they_are_asked_for(offgen, prompts, tmp_path):
    prompts(3)
    offgen(
        "run", "in.jsonl", "-o", "-", "--model", "echo", "--metrics-file", "m.prom", "--report", "r.json",
        "--progress", "json", check=0,
    )  # fmt: skip
    assert "offgen_rows_done_total 3\n" in (tmp_path / "m.prom").read_text()
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == 3


def test_json_progress_is_json_lines(offgen, prompts):
    prompts(3)
    run = offgen("run", "in.jsonl", "-o", "-", "--model", "echo", "--progress", "json", check=0)
    events = [json.loads(line)["event"] for line in run.stderr.splitlines()]
    assert events[0] == "note"
    assert events[-1] == "summary"
