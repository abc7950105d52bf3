"""Which rows make which shard. Arithmetic; knows no file.

The selected rows, in input order, stand at positions 0, 1, 2, …; a split is `rows_per_shard` of them in a row.
"""

from __future__ import annotations

from typing import Any

from offgen.writers.options import SelectionLike


class Splits:
    """Rows to splits and back. `num_selected` is None until the reader has come to the end; written by Output only."""

    __slots__ = ("_first", "_rows_per_shard", "_stride", "num_selected")

    def __init__(self, selection: SelectionLike, rows_per_shard: int) -> None:
        stride = selection.num_shards
        self._stride = stride
        self._first = selection.skip + (selection.shard_index - selection.skip) % stride
        self._rows_per_shard = rows_per_shard
        self.num_selected: int | None = None

    def position_of(self, row_id: Any) -> Any:
        """The place among the selected rows of one row id, or of an array of them."""
        return (row_id - self._first) // self._stride

    def split_of(self, row_id: Any) -> Any:
        return (row_id - self._first) // self._stride // self._rows_per_shard

    def row_id_at(self, position: int) -> int:
        return self._first + position * self._stride

    def first_position(self, split: int) -> int:
        return split * self._rows_per_shard

    def num_rows(self, split: int) -> int | None:
        """How many rows the split has; None while it may be the last and the end is not known."""
        if self.num_selected is None:
            return None
        return max(0, min(self._rows_per_shard, self.num_selected - self.first_position(split)))

    @property
    def rows_per_shard(self) -> int:
        return self._rows_per_shard

    @property
    def num_splits(self) -> int | None:
        """At least one, so that an empty input has an output with a schema."""
        if self.num_selected is None:
            return None
        return max(1, -(-self.num_selected // self._rows_per_shard))
