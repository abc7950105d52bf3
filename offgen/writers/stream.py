"""`-o -`: JSON lines on stdout, a line as each row finishes. Keeps no state, so nothing is resumed."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from offgen.errors import JobError
from offgen.records import Completion
from offgen.writers.journal import RowEncoder
from offgen.writers.json_lines import json_lines
from offgen.writers.openai_batch import OpenAIBatchLines
from offgen.writers.options import OutputOptions
from offgen.writers.own_columns import LATENCIES, NUM_JOURNAL_FIELDS, journal_column
from offgen.writers.progress import ResumeState
from offgen.writers.pump import Pump
from offgen.writers.samples import SampleGate
from offgen.writers.schema import OutputSchema
from offgen.writers.summary import Counts, Timings, Totals


class ReaderGone(JobError):
    """Whoever read stdout went away: quiet, exit 141."""

    exit_code = 141

    def __init__(self) -> None:
        super().__init__("stdout: its reader went away")


class StreamOutput:
    """The same doors as Output; `state_dir` is None."""

    state_dir: Path | None = None

    def __init__(self, options: OutputOptions, schema: OutputSchema, fd: int | None = None) -> None:
        self._schema = schema
        self._fd = fd
        self._encoder = RowEncoder(options, schema)
        is_batch = options.format == "openai-batch"
        self._lines_of = OpenAIBatchLines(schema, options.model).lines if is_batch else json_lines
        self._gate = SampleGate()
        self._totals = Totals()
        self._pump: Pump[Completion] | None = None

    def start(
        self, *, fingerprint: dict[str, Any], run: dict[str, Any], overwrite: bool, resume: bool, retry_errors: bool
    ) -> ResumeState:
        """Nothing is ever there from an earlier run."""
        sys.stdout.flush()
        if self._fd is None:
            self._fd = sys.stdout.fileno()
        self._pump = Pump(self._handle, 0.0, name="offgen-stdout")
        return ResumeState()

    def is_done(self, row_id: int) -> bool:
        return False

    def write(self, completion: Completion) -> None:
        """Take one sample; the line of a row is written as soon as its samples are in. Raises ReaderGone."""
        samples = self._gate.admit(completion)
        if samples is not None:
            assert self._pump is not None, "write comes after start"
            self._pump.put(samples, self._gate.num_bytes(samples))

    def end_of_input(self, num_selected: int) -> None:
        """Nothing waits for it here."""

    def finish(self, report: dict[str, Any] | None = None) -> Totals:
        self.close()
        return self._totals

    def totals(self) -> Totals:
        """What has been written so far."""
        return self._totals

    def write_report(self, report: dict[str, Any]) -> None:
        """There is no folder to keep it in."""

    def close(self) -> None:
        """Write what finished. Safe to call again."""
        if self._pump is not None:
            pump, self._pump = self._pump, None
            pump.close()

    def _handle(self, completions: Sequence[Completion], is_due: bool) -> None:
        if not completions:
            return
        lines: list[tuple[int, str]] = []
        for batch in self._encoder.batches(completions):
            self._count(batch)
            theirs = pa.schema(list(batch.schema)[NUM_JOURNAL_FIELDS:])
            rows = self._schema.from_journal(batch, self._schema.widened([theirs]))
            orders = journal_column(batch, "finish_order").to_pylist()
            lines += zip(orders, self._lines_of(rows), strict=False)  # a batch line stands for all samples of its row
        lines.sort(key=lambda line: line[0])
        self._put("".join(f"{line}\n" for _, line in lines).encode("utf-8"))

    def _count(self, batch: pa.RecordBatch) -> None:
        columns = {name: journal_column(batch, name) for name in (*LATENCIES, "cached_tokens")}
        keys = ("row_id", "prompt_tokens", "completion_tokens", "error")
        counts, timings = Counts(), Timings()
        counts.add_columns(*(journal_column(batch, name) for name in keys))
        timings.add_columns(columns, journal_column(batch, "error"))
        self._totals.add(counts, timings)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        assert self._fd is not None
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    select.select([], [self._fd], [])
        except BrokenPipeError as problem:
            raise ReaderGone from problem
        except OSError as problem:
            raise JobError(f"stdout: {problem.strerror}") from problem
