"""The same job again: what is done stays done, another job's output is refused, a damaged state is made good."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from writer_jobs import FINGERPRINT, Job, read_folder, table_of

from offgen.errors import JobError, UsageError
from offgen.writers import open_output

MakeJob = Callable[..., Job]
NAMES = ["out/", "out.parquet", "out.arrow", "out.jsonl", "out.jsonl.gz", "lines/"]


def made(job: MakeJob, name: str, **kwargs: Any) -> Job:
    options = {**({"format": "jsonl"} if name == "lines/" else {}), **kwargs.pop("options", {})}
    return job(name, options=options, **kwargs)


def content(target: str) -> dict[str, bytes]:
    """The bytes of the visible files."""
    path = Path(target)
    files = [path] if path.is_file() else sorted(path.glob("part-*"))
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("name", NAMES)
def test_only_missing_rows_are_run_and_the_bytes_are_the_same(job: MakeJob, name: str, tmp_path: Path) -> None:
    clean = made(job, name, num_rows=23)
    clean.run()
    before = content(clean.target)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    again = made(job, name, num_rows=23)
    again.run(stop_after=5)
    again.run(stop_after=9)
    assert again.redone == list(range(5, 14))
    again.run()
    assert again.redone == list(range(14, 23))
    assert content(again.target) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_job_is_done_again_at_once(job: MakeJob, name: str) -> None:
    one = made(job, name, fails=lambda row_id: row_id == 3)
    first = one.run()
    before = content(one.target)
    second = one.run()
    assert one.redone == [] and content(one.target) == before
    assert first is not None and second is not None
    assert (second.rows, second.errors, second.num_error_rows) == (10, {"bad_row": 1}, 1)
    assert second.latencies["e2e_s"].count == first.latencies["e2e_s"].count == 9


@pytest.mark.parametrize("name", NAMES)
def test_retry_errors_runs_just_those(job: MakeJob, name: str, tmp_path: Path) -> None:
    clean = made(job, name)
    clean.run()
    before = content(clean.target)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    one = made(job, name, fails=lambda row_id: row_id in {1, 4, 5})
    one.run()
    one.fails = lambda row_id: row_id == 4
    one.run(retry=True, stop_after=1)
    assert one.redone == [1]
    one.run(retry=True)
    assert one.redone == [4, 5]
    one.fails = lambda row_id: False
    totals = one.run(retry=True)
    assert one.redone == [4]
    assert totals is not None and totals.errors == {} and totals.latencies["e2e_s"].count == 10
    assert content(one.target) == before


def test_a_retry_that_was_stopped_goes_on_without_being_asked(job: MakeJob) -> None:
    one = made(job, "out/", fails=lambda row_id: row_id in {1, 2})
    one.run()
    one.fails = lambda row_id: False
    one.run(retry=True, stop_after=1)
    totals = one.run()
    assert one.redone == [] and totals is not None and totals.errors == {"bad_row": 1}
    assert read_folder(one.target)["error"].null_count == 9


def test_totals_add_up_over_runs(job: MakeJob) -> None:
    one = made(job, "out/", num_rows=30, options={"with_stats": False})
    one.run(stop_after=13)
    totals = one.run()
    assert totals is not None
    assert (totals.rows, totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (30, 90, 150, 30)
    assert totals.latencies["ttft_s"].count == 30
    assert totals.latencies["e2e_s"].percentile(99) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_another_jobs_output_is_refused_saying_what_differs(job: MakeJob, name: str) -> None:
    one = made(job, name)
    one.run(stop_after=6)
    other = made(job, name, fingerprint={"model": "echo", "sampling": {"temperature": 0.7}})
    with pytest.raises(UsageError, match=r"sampling.temperature: 0.0 -> 0.7") as caught:
        other.run()
    assert "--overwrite" in (caught.value.hint or "")
    one.run()
    assert one.redone == [6, 7, 8, 9]  # nothing was touched
    with pytest.raises(UsageError, match="another job"):
        other.run()
    other.run(overwrite=True)
    assert other.redone == list(range(10))
    other.run(overwrite=True)  # a Makefile may always pass it
    assert other.redone == []


def test_options_that_shape_the_output_are_part_of_the_job(job: MakeJob) -> None:
    made(job, "out/").run(stop_after=3)
    with pytest.raises(UsageError, match="rows_per_shard: 4 -> 5"):
        made(job, "out/", options={"rows_per_shard": 5}).run()
    made(job, "out/", options={"flush_interval_s": 1.0}).run()


@pytest.mark.parametrize("name", NAMES)
def test_no_resume_discards_this_jobs_progress(job: MakeJob, name: str) -> None:
    one = made(job, name)
    one.run(stop_after=6)
    one.run(resume=False)
    assert one.redone == list(range(10))
    one.run(resume=False, stop_after=2)
    one.run()
    assert one.redone == list(range(2, 10))


def test_a_foreign_file_is_refused_and_replaced_only_at_the_end(job: MakeJob) -> None:
    one = made(job, "out.jsonl")
    Path(one.target).write_text("precious\n")
    with pytest.raises(UsageError, match="not from offgen") as caught:
        one.run()
    assert "--overwrite" in (caught.value.hint or "")
    assert not Path(one.target + ".offgen").exists()
    one.run(overwrite=True, stop_after=3)
    assert Path(one.target).read_text() == "precious\n"
    one.run(resume=False, stop_after=2)
    assert Path(one.target).read_text() == "precious\n"
    one.run()
    assert one.redone == list(range(2, 10))
    assert len(Path(one.target).read_text().splitlines()) == 10


def test_a_foreign_folder_is_refused_and_never_emptied(job: MakeJob) -> None:
    one = made(job, "out/")
    folder = Path(one.target)
    folder.mkdir()
    (folder / ".hidden").touch()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes.txt"):
        one.run()
    assert sorted(path.name for path in folder.iterdir()) == [".hidden", "notes.txt"]
    one.run(overwrite=True)
    one.run(resume=False)
    assert (folder / "notes.txt").read_text() == "mine"
    assert read_folder(folder).num_rows == 10


def test_foreign_parts_are_never_taken_or_deleted(job: MakeJob) -> None:
    one = made(job, "out/")
    folder = Path(one.target)
    folder.mkdir()
    pq.write_table(table_of(3), folder / "part-00007.parquet")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="part-00007"):
            one.run(overwrite=overwrite)
    assert (folder / "part-00007.parquet").exists()


def test_a_single_file_that_was_edited_is_not_ours_any_more(job: MakeJob) -> None:
    one = made(job, "out.jsonl")
    one.run()
    Path(one.target).write_text("edited\n")
    with pytest.raises(UsageError):
        one.run()
    one.run(overwrite=True)
    assert len(Path(one.target).read_text().splitlines()) == 10


def test_a_single_file_that_was_deleted_is_made_again(job: MakeJob) -> None:
    one = made(job, "out.parquet")
    one.run()
    Path(one.target).unlink()
    one.run()
    assert one.redone == list(range(10)) and pq.read_table(one.target).num_rows == 10


def test_a_part_that_was_deleted_is_made_again(job: MakeJob) -> None:
    one = made(job, "out/")
    one.run()
    (Path(one.target) / "part-00001.parquet").unlink()
    one.run()
    assert one.redone == [4, 5, 6, 7] and read_folder(one.target).num_rows == 10


def test_two_jobs_do_not_share_an_output(job: MakeJob) -> None:
    one = made(job, "out/")
    first = one.open()
    first.start(fingerprint=FINGERPRINT, run={}, overwrite=False, resume=True, retry_errors=False)
    with pytest.raises(JobError, match=r"another job is writing here \(pid \d+ on"):
        one.run()
    with pytest.raises(JobError, match="another job"):
        one.run(overwrite=True, resume=False)
    first.close()
    one.run()
    assert one.redone == list(range(10))


@pytest.mark.parametrize("name", ["out/", "out.parquet", "lines/"])
@pytest.mark.parametrize("victim", ["run.json", "commits.log", "both"])
@pytest.mark.parametrize("damage", ["garbage", "empty", "gone"])
def test_a_state_that_cannot_be_read_is_rebuilt(job: MakeJob, name: str, victim: str, damage: str) -> None:
    one = made(job, name, num_rows=23, fails=lambda row_id: row_id == 2)
    one.run(stop_after=14)
    state = Path(one.target) / "_offgen" if name.endswith("/") else Path(one.target + ".offgen")
    for victim_name in ["run.json", "commits.log"] if victim == "both" else [victim]:
        path = state / victim_name
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(b"" if damage == "empty" else b"\x00garbage{" * 20)
    totals = one.run()
    assert one.redone == list(range(14, 23))
    assert totals is not None and (totals.rows, totals.errors, totals.completion_tokens) == (23, {"bad_row": 1}, 110)


def test_state_of_another_version_is_refused(job: MakeJob) -> None:
    one = made(job, "out/")
    one.run(stop_after=5)
    path = Path(one.target) / "_offgen" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(UsageError, match="version"):
        one.run()


def test_shards_lie_side_by_side(tmp_path: Path) -> None:
    from writer_jobs import completions_of, rows_of

    from offgen.writers import OutputOptions
    from offgen.writers.options import AllRows

    table = table_of(25)
    for index in range(3):
        options = OutputOptions(rows_per_shard=2, selection=AllRows(4, 17, index, 3))
        output = open_output(f"{tmp_path}/out/", options, table.schema)
        output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
        mine = [row for row in rows_of(table) if 4 <= row.row_id < 21 and row.row_id % 3 == index]
        for row in reversed(mine):
            output.write(completions_of(row)[0])
        output.end_of_input(len(mine))
        output.finish()
        folder = tmp_path / "out" / f"shard-{index}-of-3"
        assert read_folder(folder)["row_id"].to_pylist() == [row.row_id for row in mine]
        assert (folder / "_SUCCESS").exists()
    with pytest.raises(UsageError, match="shard-0-of-3"):
        open_output(f"{tmp_path}/out/", OutputOptions(), table.schema).start(
            fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False
        )


def test_is_done_is_compact_for_ten_million_rows() -> None:
    from offgen.writers.options import AllRows
    from offgen.writers.progress import Committed, Progress
    from offgen.writers.splits import Splits

    progress = Progress(Splits(AllRows(), 10_000))
    for split in range(1000):
        progress.committed[split] = Committed(0, 10_000, 0, 0)
    progress.mark_rows(1000, range(10_000_000, 10_000_500))
    assert progress.is_done(0) and progress.is_done(9_999_999) and progress.is_done(10_000_499)
    assert not progress.is_done(10_000_500)
    assert progress.num_done == 10_000_500
