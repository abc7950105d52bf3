from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offgen.errors import JobError, UsageError
from offgen.readers import Selection, open_input


class Pipe(io.BytesIO):
    """A stand-in for sys.stdin."""

    @property
    def buffer(self) -> Pipe:
        return self


def lines(num_rows: int, start: int = 0) -> bytes:
    return b"".join(json.dumps({"n": i, "pad": "x" * 50}).encode() + b"\n" for i in range(start, start + num_rows))


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda data: monkeypatch.setattr(sys, "stdin", Pipe(data))


@pytest.mark.parametrize("num_rows", [0, 3, 50_000])
@pytest.mark.parametrize("is_spooled", [True, False])
def test_jsonl_comes_in_through_a_pipe(feed: Any, read: Any, tmp_path: Path, num_rows: int, is_spooled: bool) -> None:
    feed(lines(num_rows))
    source = open_input(["-"], spool_dir=tmp_path / "state" if is_spooled else None)
    assert not (tmp_path / "state").exists()  # opening writes nothing
    assert source.num_rows == (num_rows if num_rows < 1000 else None)
    got = read(source, ["n"])
    assert [v["n"] for v in got.values] == list(range(num_rows))
    assert not num_rows or got.rows[-1].where == f"-:{num_rows}"


@pytest.mark.parametrize("again", ["same", "nothing"])
def test_a_resume_reads_the_spool(feed: Any, read: Any, tmp_path: Path, again: str) -> None:
    data = lines(50_000)
    feed(data)
    first = open_input(["-"], spool_dir=tmp_path)
    rows = first.rows(["n"], selection=Selection(), skip=lambda row_id: False)
    next(rows)  # the job dies here; the pipe is drained all the same
    until = time.monotonic() + 10
    while not list(tmp_path.glob("stdin-*.jsonl")) and time.monotonic() < until:
        time.sleep(0.01)
    feed(data if again == "same" else b"")
    second = open_input(["-"], spool_dir=tmp_path)
    assert second.fingerprint() == first.fingerprint()
    assert read(second, ["n"], done=set(range(49_998))).values == [{"n": 49_998}, {"n": 49_999}]


def test_other_data_is_another_input(feed: Any, read: Any, tmp_path: Path) -> None:
    feed(lines(10))
    first = open_input(["-"], spool_dir=tmp_path)
    read(first)
    feed(lines(10, start=5))
    second = open_input(["-"], spool_dir=tmp_path)
    assert second.fingerprint() != first.fingerprint()
    assert read(second, ["n"]).values[0] == {"n": 5}


def test_rows_are_not_held_back_until_a_batch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as feeder:
        pipe = type("In", (), {"buffer": stream})()
        monkeypatch.setattr(sys, "stdin", pipe)
        big = b'{"n": 0, "pad": "' + b"x" * (2 << 20) + b'"}\n'

        def write() -> None:
            feeder.write(big)
            feeder.write(b'{"n": 1}\n')

        thread = threading.Thread(target=write)
        thread.start()
        rows = open_input(["-"]).rows(["n"], selection=Selection(), skip=lambda row_id: False)
        assert [next(rows).values["n"], next(rows).values["n"]] == [0, 1]  # though the pipe is still open
        thread.join()


def test_a_named_pipe_is_read_as_often_as_needed(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(lines(40_000),))
    thread.start()
    source = open_input([str(tmp_path / "pipe")])
    for _ in range(2):
        assert [v["n"] for v in read(source, ["n"]).values] == list(range(40_000))
    thread.join()


def test_without_a_spool_it_is_read_once(feed: Any, read: Any) -> None:
    feed(lines(50_000))
    source = open_input(["-"])
    read(source)
    with pytest.raises(JobError, match="only once"):
        read(source)


def test_a_terminal_and_other_formats_are_refused(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(b"")
    with pytest.raises(UsageError, match="JSONL"):
        open_input(["-"], input_format="parquet")
    monkeypatch.setattr(Pipe, "isatty", lambda self: True)
    with pytest.raises(UsageError, match="terminal"):
        open_input(["-"])


def test_rows_of_a_slow_pipe_are_answered_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb", buffering=0) as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(stream)))  # type: ignore[arg-type]
        os.write(writable, lines(2) + b'{"n": ')
        rows = open_input(["-"]).rows(["n"], selection=Selection(), skip=lambda row_id: False)
        assert [next(rows).values["n"], next(rows).values["n"]] == [0, 1]
        os.write(writable, b"2}\n")
        assert next(rows).values["n"] == 2
        os.close(writable)
        assert next(rows, None) is None
