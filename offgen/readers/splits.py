"""Which rows of the input a job takes: `--skip`, `--limit` and `--shard`, in that order, in closed form.

Pure arithmetic on row ids. Knows no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows with skip <= row_id < skip + limit and row_id % num_shards == shard_index."""

    skip: int = 0
    limit: int | None = None
    shard_index: int = 0
    num_shards: int = 1

    def __post_init__(self) -> None:
        if self.skip < 0 or (self.limit is not None and self.limit < 0):
            raise ValueError("skip and limit cannot be negative")
        if not 0 <= self.shard_index < self.num_shards:
            raise ValueError(f"shard {self.shard_index} of {self.num_shards} does not exist: shards count from 0")

    @property
    def end(self) -> int | None:
        """The first row id past the selection; None if it is open."""
        return None if self.limit is None else self.skip + self.limit

    @property
    def _first(self) -> int:
        return self.skip + (self.shard_index - self.skip) % self.num_shards

    def contains(self, row_id: int) -> bool:
        return (
            row_id >= self.skip
            and (self.limit is None or row_id < self.skip + self.limit)
            and row_id % self.num_shards == self.shard_index
        )

    def position(self, row_id: int) -> int:
        """Where a selected row stands among the selected rows: 0, 1, 2, …"""
        return (row_id - self._first) // self.num_shards

    def row_id(self, position: int) -> int:
        """The row id of the selected row at `position`."""
        return self._first + position * self.num_shards

    def num_selected(self, num_rows: int) -> int:
        """How many rows are selected of an input of `num_rows`."""
        end = num_rows if self.end is None else min(num_rows, self.end)
        return max(0, -(-(end - self._first) // self.num_shards))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows that a reader must yield: selected, and not done already."""

    selection: Selection
    skip: Callable[[int], bool]

    def __call__(self, row_id: int) -> bool:
        return self.selection.contains(row_id) and not self.skip(row_id)

    def is_past(self, row_id: int) -> bool:
        """Whether this row and all after it lie behind the selection."""
        return self.selection.end is not None and row_id >= self.selection.end

    def any_in(self, start: int, stop: int) -> bool:
        """Whether some row of [start, stop) is wanted; cheap for rows outside the selection."""
        selection = self.selection
        first = selection.row_id(max(0, -(-(start - selection.row_id(0)) // selection.num_shards)))
        if selection.end is not None:
            stop = min(stop, selection.end)
        return any(not self.skip(row_id) for row_id in range(first, stop, selection.num_shards))
