"""Small jobs on the echo engine, as the crash tests run them: the same again after every kill."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offgen.engine.echo import EchoEngine, echo_prompts
from offgen.errors import JobError
from offgen.records import Completion, RequestStats, Row, RowError
from offgen.sampling.params import SamplingParams
from offgen.writers import OutputOptions, open_output
from offgen.writers.disk import Disk

NUM_ROWS = 11


FOLDER = OutputOptions(rows_per_shard=4, flush_interval_s=0.0)


@dataclass(frozen=True)
class Scenario:
    """A job: where it writes, how its rows look, in what order they finish."""

    name: str
    target: str
    options: OutputOptions = FOLDER
    batches: Callable[[], list[pa.RecordBatch]] = lambda: plain_batches()
    is_shuffled: bool = False
    fails: tuple[int, ...] = ()
    retries: bool = False  # the rows of `fails` fail in a first run, which is not disturbed


def plain_batches() -> list[pa.RecordBatch]:
    table = pa.table({"prompt": [f"p{place}" for place in range(NUM_ROWS)], "extra": list(range(NUM_ROWS))})
    return table.to_batches(max_chunksize=3)


def widening_batches() -> list[pa.RecordBatch]:
    """A column that is null at first, one of mixed types, and two that come late."""
    first = pa.record_batch({"prompt": ["p0", "p1", "p2", "p3"], "meta": pa.nulls(4), "mixed": [1, 2, 3, 4]})
    second = pa.record_batch({"prompt": ["p4", "p5"], "meta": ["x", None], "mixed": ["a", "b"], "zoo": [1.5, None]})
    third = pa.record_batch(
        {
            "prompt": [f"p{place}" for place in range(6, NUM_ROWS)],
            "mixed": [[1], [], None, [2], [3]],
            "ant": [[True]] * 5,
        }
    )
    return [first, second, third]


SCENARIOS = [
    Scenario("folder", "out/"),
    Scenario("shuffled", "out/", is_shuffled=True, fails=(3,)),
    Scenario("widening", "out/", batches=widening_batches, is_shuffled=True),
    Scenario("retry", "out/", fails=(1, 5, 6), retries=True),
    Scenario("samples", "out/", replace(FOLDER, num_samples=2, with_token_ids=True)),
    Scenario("lines-folder", "out/", replace(FOLDER, format="jsonl"), batches=widening_batches),
    Scenario("lines-retry", "out/", replace(FOLDER, format="jsonl"), fails=(1, 5, 6), retries=True),
    Scenario("parquet-file", "out.parquet", is_shuffled=True),
    Scenario("arrow-file", "out.arrow", batches=widening_batches),
    Scenario("gzip-file", "out.jsonl.gz", fails=(2, 9), retries=True),
]


def rows_of(scenario: Scenario) -> Iterator[Row]:
    row_id = 0
    for batch in scenario.batches():
        prompts = batch.column("prompt").to_pylist()
        for index, prompt in enumerate(prompts):
            yield Row(row_id, batch, index, {"prompt": prompt}, f"input:{row_id}")
            row_id += 1


def run(scenario: Scenario, folder: Path, *, disk: Disk | None = None, is_first: bool = False) -> list[int]:
    """Run the job, or what is missing of it. Returns the rows that were run. `is_first`: the run before a retry."""
    schema = scenario.batches()[0].schema
    output = open_output(
        str(folder / scenario.target) + ("/" if scenario.target.endswith("/") else ""),
        scenario.options, schema, disk=disk,
    )  # fmt: skip
    try:
        return _run(scenario, output, is_retry=scenario.retries and not is_first)
    except JobError:
        with contextlib.suppress(JobError):
            output.close()
        raise


def _run(scenario: Scenario, output: Any, *, is_retry: bool) -> list[int]:
    state = output.start(fingerprint={"job": "crash"}, run={}, overwrite=False, resume=True, retry_errors=is_retry)
    if state.is_finished:
        output.finish()
        return []
    rows = [row for row in rows_of(scenario) if not output.is_done(row.row_id)]
    if scenario.is_shuffled:
        random.Random(len(rows)).shuffle(rows)
    params = SamplingParams(n=scenario.options.num_samples)
    fails = () if is_retry else scenario.fails
    for completion in EchoEngine().generate(echo_prompts(rows, column="prompt", params=params)):
        output.write(_failed(completion) if completion.row.row_id in fails else completion)
    output.end_of_input(NUM_ROWS)
    output.finish()
    return [row.row_id for row in rows]


def _failed(completion: Completion) -> Completion:
    return Completion(
        completion.row, completion.sample_index, completion.num_samples,
        error=RowError("bad_row", "no"), stats=RequestStats(),
    )  # fmt: skip


def result(scenario: Scenario, folder: Path) -> Any:
    """What the output says, in every column but stats; raises if anything half-made lies about."""
    target = folder / scenario.target
    files = [target] if target.is_file() else sorted(target.glob("part-*"))
    assert target.is_file() or (target / "_SUCCESS").exists()
    leavings = [path for path in folder.rglob("*") if path.name.endswith(".tmp") or path.suffix == ".journal"]
    assert not leavings, leavings
    if any(".jsonl" in path.name for path in files):
        return [_line(line) for path in files for line in _text(path).splitlines()]
    tables = [_table(path).drop_columns(["stats"]) for path in files]
    assert all(table.schema.equals(tables[0].schema, check_metadata=True) for table in tables)
    table = pa.concat_tables(tables)
    return [str(table.schema), table.to_pylist()]


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def _line(line: str) -> dict[str, Any]:
    values = json.loads(line)
    del values["stats"]
    return dict(values)


def _table(path: Path) -> pa.Table:
    return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
