"""How fast rows go through reader, journal and writer when the engine costs nothing, and whether memory stays flat.

Makes a file of short rows, runs it through the echo engine in this process (no tokenizer, no model), prints one JSON
line: rows/s by wall clock and by CPU time, and resident memory at 10%, 50% and 90% of the rows. The process keeps to
one core.

    python benchmarks/data_plane.py --rows 200000 --input jsonl --output parquet
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offgen.engine.echo import EchoEngine, echo_prompts
from offgen.readers import Selection, open_input
from offgen.records import Completion
from offgen.sampling.params import SamplingParams
from offgen.writers import OutputOptions, open_output

OUTPUTS = {"folder": "out/", "parquet": "out.parquet", "jsonl": "out.jsonl", "lines-folder": "lines/"}
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def make_input(folder: Path, kind: str, num_rows: int) -> Path:
    """Short rows: an id, a prompt of about 60 characters, a label."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        schema = pa.schema([("id", pa.int64()), ("prompt", pa.string()), ("label", pa.string())])
        with pq.ParquetWriter(path, schema) as writer:
            for start in range(0, num_rows, 50_000):
                rows = [_row(place) for place in range(start, min(num_rows, start + 50_000))]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        return path
    with path.open("w", encoding="utf-8") as file:
        for place in range(num_rows):
            file.write(json.dumps(_row(place)) + "\n")
    return path


def _row(place: int) -> dict[str, Any]:
    return {
        "id": place,
        "prompt": f"Question {place}: what comes after the number {place * 7919}?",
        "label": "abc"[place % 3],
    }


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def run(source: Path, target: str, num_rows: int) -> dict[str, Any]:
    """One job; its figures."""
    options = OutputOptions(format="jsonl" if target.endswith("lines/") else None)
    data = open_input([str(source)])
    output = open_output(target, options, data.schema)
    output.start(fingerprint=data.fingerprint(), run={}, overwrite=False, resume=True, retry_errors=False)
    started, cpu = time.perf_counter(), time.process_time()
    rows = data.rows(["prompt"], selection=Selection(), skip=output.is_done)
    completions = EchoEngine().generate(echo_prompts(rows, column="prompt", params=SamplingParams()))
    memory: dict[str, int] = {}
    for completion in watched(completions, num_rows, memory):
        output.write(completion)
    output.end_of_input(num_rows)
    written_s = time.perf_counter() - started
    totals = output.finish()
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    assert totals.rows == num_rows
    return {
        "rows": num_rows,
        "rows_per_s": round(num_rows / wall_s),
        "rows_per_cpu_s": round(num_rows / cpu_s),
        "finish_s": round(wall_s - written_s, 2),
        **memory,
    }


def watched(completions: Iterator[Completion], num_rows: int, memory: dict[str, int]) -> Iterator[Completion]:
    """The same completions; notes resident memory on the way."""
    marks = {num_rows * percent // 100: f"rss_{percent}_mb" for percent in (10, 50, 90)}
    for count, completion in enumerate(completions):
        if count in marks:
            memory[marks[count]] = resident_bytes() >> 20
        yield completion


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--input", choices=["jsonl", "parquet"], default="jsonl")
    parser.add_argument("--output", choices=sorted(OUTPUTS), default="folder")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    asked = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    try:
        source = make_input(folder, asked.input, asked.rows)
        figures = run(source, str(folder) + "/" + OUTPUTS[asked.output], asked.rows)
        print(json.dumps({"input": asked.input, "output": asked.output, **figures}))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
