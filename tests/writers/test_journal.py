"""The journal: torn at any byte, it gives back every whole frame and not one row of a torn one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from writer_jobs import FINGERPRINT, Job, completions_of, read_folder, rows_of

from offgen.writers.frames import Frames, frame
from offgen.writers.journal import read_journal
from offgen.writers.own_columns import journal_column


def rows_in(path: Path) -> list[int]:
    return [row_id for batch in read_journal(path).batches for row_id in journal_column(batch, "row_id").to_pylist()]


@pytest.fixture
def stopped(job: Callable[..., Job]) -> Job:
    """A job of ten rows in one split that stopped after six, two in each frame."""
    one = job("out/", options={"rows_per_shard": 100})
    for start in (0, 2, 4):
        output = one.open()
        output.start(fingerprint=FINGERPRINT, run={}, overwrite=False, resume=True, retry_errors=False)
        for row in list(rows_of(one.table))[start : start + 2]:
            output.write(completions_of(row)[0])
        output.close()
    return one


def test_a_tail_torn_anywhere_is_cut(stopped: Job) -> None:
    check_torn(stopped, step=37)


@pytest.mark.slow
def test_a_tail_torn_at_every_byte_is_cut(stopped: Job) -> None:
    check_torn(stopped, step=1)


def check_torn(stopped: Job, step: int) -> None:
    path = next((Path(stopped.target) / "_offgen" / "journal").iterdir())
    whole = path.read_bytes()
    assert rows_in(path) == [0, 1, 2, 3, 4, 5]
    frames = Frames(memoryview(whole))
    ends = []
    for _ in frames:
        ends.append(frames.valid_size)
    assert len(ends) == 4 and ends[-1] == len(whole)
    near = {end + off for end in [0, *ends] for off in (-1, 0, 1, 15, 63, 64, 65)}
    for size in sorted({*range(0, len(whole), step), *near} & set(range(len(whole)))):
        path.write_bytes(whole[:size])
        contents = read_journal(path)
        num_frames = sum(end <= size for end in ends)
        assert rows_in(path) == list(range(2 * max(0, num_frames - 1)))
        assert contents.size == ([0, *ends][num_frames]) and contents.is_torn == (size not in {0, *ends})


@pytest.mark.parametrize("cut", [1, 70, 700, 2500, 5000])
def test_a_torn_journal_goes_on(stopped: Job, cut: int) -> None:
    path = next((Path(stopped.target) / "_offgen" / "journal").iterdir())
    path.write_bytes(path.read_bytes()[:-cut])
    kept = rows_in(path)
    stopped.run()
    assert stopped.redone == [row_id for row_id in range(10) if row_id not in kept]
    assert read_folder(stopped.target)["completion"].to_pylist() == [f"text {row_id}.0" for row_id in range(10)]


def test_a_flipped_byte_ends_what_is_believed() -> None:
    data = bytearray(frame(b"one") + frame(b"two") + frame(b"three"))
    assert [bytes(payload) for payload in Frames(memoryview(data))] == [b"one", b"two", b"three"]
    for place in range(128, 128 + 64 + 3):
        if 128 + 20 <= place < 128 + 64:
            continue  # padding of the head says nothing
        flipped = bytearray(data)
        flipped[place] ^= 0x10
        assert [bytes(payload) for payload in Frames(memoryview(flipped))] == [b"one"]


def test_a_journal_of_garbage_is_thrown_away(stopped: Job) -> None:
    path = next((Path(stopped.target) / "_offgen" / "journal").iterdir())
    path.write_bytes(b"\x80garbage" * 100)
    stopped.run()
    assert stopped.redone == list(range(10)) and read_folder(stopped.target).num_rows == 10


def test_the_journal_is_gone_when_the_shard_is_there(job: Callable[..., Job]) -> None:
    one = job("out/", num_rows=10)
    one.run(stop_after=9)
    journals = [path.name for path in (Path(one.target) / "_offgen" / "journal").iterdir()]
    assert journals == ["split-00002-0.journal"]
    assert [path.name for path in sorted(Path(one.target).glob("part-*"))] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]
