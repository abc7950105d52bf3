"""Counts how often each row and sample comes. Knows arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from offgen.writers.splits import Splits

MAX_NAMED = 5  # rows that one message names


class RowLedger:
    """A byte for each row and sample of one job. Written by `add` only."""

    def __init__(self, splits: Splits, num_samples: int) -> None:
        self._splits = splits
        self._num_samples = num_samples
        self._counts = np.zeros(0, np.uint8)
        self.strangers: list[int] = []  # row ids that are not of the selection
        self.num_rows = 0

    def add(self, row_ids: Any, samples: Any) -> None:
        """Take in the keys of some output rows."""
        self.num_rows += len(row_ids)
        positions = self._splits.position_of(row_ids)
        is_ours = (self._splits.row_id_at(positions) == row_ids) & (positions >= 0)
        is_ours &= (samples >= 0) & (samples < self._num_samples)
        if self._splits.num_selected is not None:
            is_ours &= positions < self._splits.num_selected
        self.strangers += np.asarray(row_ids)[~is_ours].tolist()
        places = positions[is_ours] * self._num_samples + samples[is_ours]
        if not len(places):
            return
        if int(places.max()) >= len(self._counts):
            grown = np.zeros(max(int(places.max()) + 1, 2 * len(self._counts)), np.uint8)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        unique, counts = np.unique(places, return_counts=True)
        self._counts[unique] = np.minimum(self._counts[unique].astype(np.int64) + counts, 255)

    def problems(self, name_of: Callable[[int], str]) -> Iterator[str]:
        """What is wrong, as sentences. `name_of` names a row for people."""
        size = self._splits.num_selected
        table = self._counts[: len(self._counts) // self._num_samples * self._num_samples]
        rows = table.reshape(-1, self._num_samples)
        if size is not None and len(rows) < size:
            rows = np.concatenate([rows, np.zeros((size - len(rows), self._num_samples), np.uint8)])
        if size is not None:
            yield from self._say("missing", np.flatnonzero((rows[:size] == 0).all(axis=1)), name_of)
        yield from self._say("there more than once", np.flatnonzero((rows > 1).any(axis=1)), name_of)
        has = rows > 0
        is_holed = (has[:, 1:] & ~has[:, :-1]).any(axis=1)
        yield from self._say("without one of its samples", np.flatnonzero(is_holed), name_of)
        if self.strangers:
            yield _sentence("not a row of this job", [f"row_id {row_id}" for row_id in self.strangers])

    def _say(self, what: str, positions: Any, name_of: Callable[[int], str]) -> Iterator[str]:
        if len(positions):
            named = [name_of(self._splits.row_id_at(int(place))) for place in positions[:MAX_NAMED]]
            yield _sentence(what, named, len(positions))


def _sentence(what: str, named: list[str], count: int | None = None) -> str:
    count = len(named) if count is None else count
    shown = ", ".join(named[:MAX_NAMED]) + (", …" if count > MAX_NAMED else "")
    return f"{count} row{'s are' if count > 1 else ' is'} {what}: {shown}"
