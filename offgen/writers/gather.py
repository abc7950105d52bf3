"""Rows of a split, out of many batches, in their final order, a row group at a time. Knows no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from offgen.writers.formats import GROUP_BYTES, GROUP_ROWS
from offgen.writers.journal import take
from offgen.writers.row_sizes import row_sizes


@dataclass(slots=True)
class Pieces:
    """Batches of one schema with the keys of their rows. The rank says which of two results for a row is the later."""

    batches: list[pa.RecordBatch]
    row_ids: list[Any]
    sample_indices: list[Any]
    finish_orders: list[Any]
    ranks: list[int]


def final_order(pieces: Pieces, *, by_finish: bool) -> tuple[Any, Any]:
    """Places (in the batches laid end to end) of the rows that hold, in output order, and their row ids."""
    if not pieces.batches:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    row_ids = np.concatenate(pieces.row_ids)
    samples = np.concatenate(pieces.sample_indices)
    finish = np.concatenate(pieces.finish_orders)
    lengths = [len(ids) for ids in pieces.row_ids]
    ranks = np.repeat(np.asarray(pieces.ranks, np.int64), lengths)
    order = np.lexsort((samples, ranks, row_ids))
    order = order[_is_of_last_rank(row_ids[order], ranks[order])]
    if by_finish:
        order = order[np.lexsort((samples[order], finish[order], ranks[order]))]
    return order, row_ids[order]


def _is_of_last_rank(ids: Any, ranks: Any) -> Any:
    """Of rows sorted by id and rank, those of the highest rank of their id."""
    if not len(ids):
        return np.zeros(0, bool)
    is_end = np.append(ids[1:] != ids[:-1], True)
    run = np.cumsum(np.concatenate([[0], is_end[:-1]]))
    return ranks == ranks[is_end][run]


def is_latest(row_ids: Any, ranks: Any) -> Any:
    """Which rows hold: those of the highest rank of their id, in any order."""
    order = np.lexsort((ranks, row_ids))
    holds = np.zeros(len(row_ids), bool)
    holds[order] = _is_of_last_rank(row_ids[order], ranks[order])
    return holds


def gather(batches: Sequence[pa.RecordBatch], order: Any, row_ids: Any) -> Iterator[pa.RecordBatch]:
    """The rows at `order`, as batches of a row group's size. The cuts depend on the rows alone."""
    if not len(order):
        return
    sizes = np.concatenate([row_sizes(batch) for batch in batches])[order]
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    for start, end in group_cuts(sizes, row_ids):
        yield _take_across(batches, starts, order[start:end])


def group_cuts(sizes: Any, row_ids: Any) -> Iterator[tuple[int, int]]:
    """Runs of rows of GROUP_ROWS rows and GROUP_BYTES bytes; the samples of one input row stay together."""
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        end = int(np.searchsorted(ends, before + GROUP_BYTES, side="right"))
        end = max(start + 1, min(end, start + GROUP_ROWS))
        while end < len(sizes) and row_ids[end] == row_ids[end - 1]:
            end += 1
        yield start, end
        start, before = end, int(ends[end - 1])


def _take_across(batches: Sequence[pa.RecordBatch], starts: Any, places: Any) -> pa.RecordBatch:
    numbers = np.searchsorted(starts, places, side="right") - 1
    by_batch = np.argsort(numbers, kind="stable")
    pieces = []
    for number in np.unique(numbers):
        local = places[by_batch[numbers[by_batch] == number]] - starts[number]
        pieces.append(rows_of(batches[number], local))
    joined = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
    if (by_batch == np.arange(len(by_batch))).all():
        return joined
    return rows_of(joined, np.argsort(by_batch, kind="stable"))


def rows_of(batch: pa.RecordBatch, indices: Any) -> pa.RecordBatch:
    """The rows at `indices`, an array of at least one; of every column type, views included."""
    count = len(indices)
    if indices[-1] - indices[0] == count - 1 and (np.diff(indices) == 1).all():
        return batch.slice(int(indices[0]), count)
    places = pa.array(indices)
    return pa.RecordBatch.from_arrays([take(column, places) for column in batch.columns], schema=batch.schema)
