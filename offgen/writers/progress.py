"""Which rows are done: compact, by split. Pure; knows no file.

A split that is committed costs a few words; one that is open, a byte for each of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offgen.writers.splits import Splits
from offgen.writers.summary import ShardSummary


@dataclass(frozen=True, slots=True)
class Committed:
    """A shard that stands: the first `num_rows` rows of its split."""

    generation: int
    num_rows: int
    num_error_rows: int
    typed_size: int

    @classmethod
    def of(cls, summary: ShardSummary) -> Committed:
        counts = summary.counts
        return cls(summary.generation, counts.num_input_rows, counts.num_error_rows, summary.typed.size)


@dataclass(slots=True)
class OpenSplit:
    """A split with a journal. `done` has a byte for each row up to the last one that is done."""

    generation: int
    base: Committed | None = None
    done: bytearray = field(default_factory=bytearray)
    num_done: int = 0
    has_journal: bool = False

    def mark(self, offset: int, is_done: bool = True) -> None:
        if offset >= len(self.done):
            self.done.extend(bytes(offset + 1 - len(self.done)))
        self.num_done += is_done - self.done[offset]
        self.done[offset] = is_done

    def is_done(self, offset: int) -> bool:
        return offset < len(self.done) and self.done[offset] == 1


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What an earlier run has left. `num_done_errors` counts done rows that failed; they count as done."""

    is_finished: bool = False
    num_done_rows: int = 0
    num_done_errors: int = 0
    run_count: int = 0  # earlier runs


class Progress:
    """Written while the state is loaded, then by the writer's thread only."""

    def __init__(self, splits: Splits) -> None:
        self.splits = splits
        self.committed: dict[int, Committed] = {}
        self.open: dict[int, OpenSplit] = {}

    def is_done(self, row_id: int) -> bool:
        if not self.committed and not self.open:
            return False
        split, offset = divmod(self.splits.position_of(row_id), self.splits.rows_per_shard)
        opened = self.open.get(split)
        if opened is not None:
            return opened.is_done(offset)
        shard = self.committed.get(split)
        return shard is not None and offset < shard.num_rows

    def opened(self, split: int) -> OpenSplit:
        """The open split, opened if need be; over its shard if it has one."""
        found = self.open.get(split)
        if found is None:
            base = self.committed.get(split)
            found = self.open[split] = OpenSplit(0 if base is None else base.generation + 1, base)
            if base is not None:
                found.done = bytearray(b"\1" * base.num_rows)
                found.num_done = base.num_rows
        return found

    def mark_rows(self, split: int, row_ids: Iterable[int], *, is_done: bool = True) -> OpenSplit:
        found = self.opened(split)
        first = self.splits.first_position(split)
        position_of = self.splits.position_of
        for row_id in row_ids:
            found.mark(position_of(row_id) - first, is_done)
        return found

    def is_complete(self, split: int) -> bool:
        """Whether an open split has all its rows and something that is not in its shard yet."""
        found = self.open[split]
        wanted = self.splits.num_rows(split)
        if wanted is None:
            return found.num_done == self.splits.rows_per_shard
        return found.num_done >= wanted

    def commit(self, split: int, summary: ShardSummary) -> None:
        self.committed[split] = Committed.of(summary)
        del self.open[split]

    @property
    def num_done(self) -> int:
        sealed = sum(shard.num_rows for split, shard in self.committed.items() if split not in self.open)
        return sealed + sum(found.num_done for found in self.open.values())

    def missing_splits(self) -> list[int]:
        """Splits that should be committed and are not, once the end is known."""
        count = self.splits.num_splits or 0
        return [split for split in range(count) if split in self.open or split not in self.committed]


def unique_rows(row_ids: Any) -> list[int]:
    return list(np.unique(np.asarray(row_ids)).tolist())
