"""Jobs on the writers alone: rows, completions and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offgen.records import Completion, RequestStats, Row, RowError
from offgen.writers import Output, OutputOptions, Totals, open_output

FINGERPRINT = {"model": "echo", "sampling": {"temperature": 0.0}}


def table_of(num_rows: int, **columns: Any) -> pa.Table:
    """An input: `prompt`, and what else is asked for."""
    return pa.table({"prompt": [f"prompt {place}" for place in range(num_rows)], **columns})


def rows_of(table: pa.Table, batch_rows: int = 7) -> Iterator[Row]:
    row_id = 0
    for batch in table.to_batches(max_chunksize=batch_rows):
        for index in range(batch.num_rows):
            yield Row(row_id, batch, index, {}, f"input:{row_id}")
            row_id += 1


def completions_of(row: Row, *, samples: int = 1, fails: bool = False) -> list[Completion]:
    if fails:
        error = RowError("bad_row", f"row {row.row_id} is bad")
        return [Completion(row, one, samples, error=error) for one in range(samples)]
    return [
        Completion(
            row, one, samples, f"text {row.row_id}.{one}", "stop", None, 3, 5 + one,
            token_ids=[row.row_id, one], stats=RequestStats(0.1, 0.2, None, 0.5, cached_tokens=1),
        )
        for one in range(samples)
    ]  # fmt: skip


@dataclass
class Job:
    """A job on the writers alone: the same again with every call of `run`."""

    target: str
    table: pa.Table
    options: OutputOptions = field(default_factory=OutputOptions)
    fails: Callable[[int], bool] = lambda row_id: False
    order: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows
    fingerprint: dict[str, Any] = field(default_factory=lambda: FINGERPRINT)
    redone: list[int] = field(default_factory=list)  # rows of the last run

    def open(self, **kwargs: Any) -> Output:
        return open_output(self.target, self.options, self.table.schema, **kwargs)

    def run(
        self, *, stop_after: int | None = None, overwrite: bool = False, resume: bool = True, retry: bool = False,
        output: Output | None = None,
    ) -> Totals | None:  # fmt: skip
        """Run the rows that are missing; with `stop_after`, close after that many."""
        output = output or self.open()
        state = output.start(
            fingerprint=self.fingerprint, run={}, overwrite=overwrite, resume=resume, retry_errors=retry
        )
        self.redone = []
        if state.is_finished:
            return output.finish()
        rows = [row for row in rows_of(self.table) if not output.is_done(row.row_id)]
        for row in self.order(rows):
            if len(self.redone) == stop_after:
                output.close()
                return None
            for completion in completions_of(row, samples=self.options.num_samples, fails=self.fails(row.row_id)):
                output.write(completion)
            self.redone.append(row.row_id)
        output.end_of_input(self.table.num_rows)
        return output.finish()


def read_folder(folder: str | Path) -> pa.Table:
    """All parts of a folder, as any reader would take it."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(Path(folder).glob("part-*.parquet"))])
