"""`-o -`: a line on stdout as each row finishes."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from writer_jobs import completions_of, rows_of, table_of

from offgen.writers import OutputOptions, ReaderGone
from offgen.writers.schema import OutputSchema
from offgen.writers.stream import StreamOutput


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def started(table: pa.Table, fd: int, **options: Any) -> StreamOutput:
    shape = OutputOptions(**options)
    output = StreamOutput(shape, OutputSchema(shape, table.schema), fd)
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    return output


def test_a_line_comes_as_soon_as_its_row_is_finished(pipe: tuple[int, int]) -> None:
    table = table_of(3, value=[float("nan"), float("inf"), 1.5])
    output = started(table, pipe[1])
    for row in rows_of(table):
        output.write(completions_of(row)[0])
        line = json.loads(os.read(pipe[0], 65536), parse_constant=pytest.fail)
        assert line["row_id"] == row.row_id and line["completion"] == f"text {row.row_id}.0"
        assert line["value"] == (1.5 if row.row_id == 2 else None)
        assert list(line)[:3] == ["prompt", "value", "row_id"]
    totals = output.finish()
    assert totals.rows == 3 and totals.latencies["e2e_s"].count == 3


def test_a_row_with_samples_comes_when_all_are_in(pipe: tuple[int, int]) -> None:
    table = table_of(1)
    output = started(table, pipe[1], num_samples=2)
    first, second = completions_of(next(rows_of(table)), samples=2)
    output.write(second)
    output.write(first)
    output.finish()
    lines = [json.loads(line) for line in os.read(pipe[0], 65536).splitlines()]
    assert [line["sample_index"] for line in lines] == [0, 1]


def test_a_reader_that_goes_away_is_told_apart(pipe: tuple[int, int]) -> None:
    table = table_of(1)
    output = started(table, pipe[1])
    os.close(pipe[0])
    row = next(rows_of(table))
    with pytest.raises(ReaderGone) as caught:
        for _ in range(200):
            output.write(completions_of(row)[0])
            time.sleep(0.01)
    assert caught.value.exit_code == 141


def test_json_types_are_plain_json(pipe: tuple[int, int]) -> None:
    import datetime
    import decimal

    table = table_of(
        1,
        raw=[b"\x00\xff"],
        when=pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5)], pa.timestamp("s", "UTC")),
        day=[datetime.date(2024, 1, 2)],
        price=[decimal.Decimal("1.20")],
        big=pa.array([2**63], pa.uint64()),
        nested=[{"a": [1, None], "b": {"c": "é\u2028\n"}}],
    )
    output = started(table, pipe[1])
    output.write(completions_of(next(rows_of(table)))[0])
    output.finish()
    data = os.read(pipe[0], 65536)
    assert data.count(b"\n") == 1
    line = json.loads(data)
    assert line["raw"] == "AP8=" and line["day"] == "2024-01-02" and line["price"] == "1.20"
    assert datetime.datetime.fromisoformat(line["when"]).year == 2024
    assert line["big"] == 2**63 and line["nested"] == {"a": [1, None], "b": {"c": "é\u2028\n"}}
