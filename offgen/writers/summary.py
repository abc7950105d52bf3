"""What is known of a committed shard without reading it again, and the totals that such summaries add up to.

Knows counts; knows no file. A summary is JSON in commits.log; `timings` cover completions without an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from offgen.stats.histogram import RELATIVE_ERROR, SMALLEST, LogHistogram
from offgen.writers.own_columns import LATENCIES, error_types

_LOG_GAMMA = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))


def histogram_of(values: Any) -> LogHistogram:
    """A float column as a histogram, all at once; nulls and what no duration can be are left out."""
    numbers = pc.drop_null(values).to_numpy(zero_copy_only=False)
    numbers = numbers[np.isfinite(numbers) & (numbers >= 0)]
    if not len(numbers):
        return LogHistogram()
    counted = numbers[numbers >= SMALLEST]
    indices, counts = np.unique(np.ceil(np.log(counted) / _LOG_GAMMA).astype(np.int64), return_counts=True)
    return LogHistogram.from_dict(
        {
            "count": len(numbers),
            "total": float(numbers.sum()),
            "min": float(numbers.min()),
            "max": float(numbers.max()),
            "zeros": int(len(numbers) - len(counted)),
            "buckets": dict(zip(indices.tolist(), counts.tolist(), strict=True)),
        }
    )


@dataclass(slots=True)
class Timings:
    """Latencies and cached tokens of completions."""

    cached_tokens: int = 0
    latencies: dict[str, LogHistogram] = field(default_factory=lambda: {name: LogHistogram() for name in LATENCIES})

    def add_columns(self, columns: dict[str, Any], error: Any) -> None:
        """Take in the rows without an error; `columns` holds LATENCIES and cached_tokens."""
        is_good = pc.is_null(error)
        for name, histogram in self.latencies.items():
            histogram.merge(histogram_of(pc.filter(columns[name], is_good)))
        self.cached_tokens += pc.sum(pc.filter(columns["cached_tokens"], is_good)).as_py() or 0

    def merge(self, other: Timings) -> None:
        self.cached_tokens += other.cached_tokens
        for name, histogram in self.latencies.items():
            histogram.merge(other.latencies[name])

    def to_dict(self) -> dict[str, Any]:
        return {
            "cached_tokens": self.cached_tokens,
            "latencies": {name: histogram.to_dict() for name, histogram in self.latencies.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Timings:
        latencies = {name: LogHistogram.from_dict(data["latencies"][name]) for name in LATENCIES}
        return cls(data["cached_tokens"], latencies)


@dataclass(slots=True)
class Counts:
    """What a shard's rows add up to. `error_rows` are the ids of input rows of which a sample failed, as [first,
    last] ranges.
    """

    num_output_rows: int = 0
    num_input_rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    error_rows: list[list[int]] = field(default_factory=list)

    def add_columns(self, row_ids: Any, prompt_tokens: Any, completion_tokens: Any, error: Any) -> None:
        """Take in output rows; the samples of one input row come together."""
        ids = np.asarray(row_ids)
        self.num_output_rows += len(ids)
        self.num_input_rows += len(np.unique(ids))
        self.prompt_tokens += pc.sum(prompt_tokens).as_py() or 0
        self.completion_tokens += pc.sum(completion_tokens).as_py() or 0
        if error.null_count == len(error):
            return
        has_error = np.asarray(pc.is_valid(error))
        for kind, count in error_types(pc.drop_null(error).to_pylist()).items():
            self.errors[kind] = self.errors.get(kind, 0) + count
        self.error_rows = to_ranges([*from_ranges(self.error_rows), *np.unique(ids[has_error]).tolist()])

    @property
    def num_error_rows(self) -> int:
        return sum(last - first + 1 for first, last in self.error_rows)


def to_ranges(row_ids: Iterable[int]) -> list[list[int]]:
    """Sorted [first, last] ranges of consecutive ids."""
    ranges: list[list[int]] = []
    for row_id in sorted(set(row_ids)):
        if ranges and row_id == ranges[-1][1] + 1:
            ranges[-1][1] = row_id
        else:
            ranges.append([row_id, row_id])
    return ranges


def from_ranges(ranges: Iterable[Iterable[int]]) -> list[int]:
    return [row_id for first, last in ranges for row_id in range(first, last + 1)]


@dataclass(slots=True)
class FileSeal:
    """A written file's name, size and checksum."""

    name: str
    size: int
    crc32: int


@dataclass(slots=True)
class ShardSummary:
    """One committed shard. `visible` is None while the shard is kept only in the state folder."""

    split: int
    generation: int
    counts: Counts
    timings: Timings
    typed: FileSeal
    visible: FileSeal | None
    schema: str  # of the pass-through columns, as `schema_text` writes it

    def to_dict(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "split": self.split,
            "generation": self.generation,
            "counts": {name: getattr(counts, name) for name in Counts.__slots__},
            "timings": self.timings.to_dict(),
            "typed": _seal_dict(self.typed),
            "visible": None if self.visible is None else _seal_dict(self.visible),
            "schema": self.schema,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ShardSummary:
        return cls(
            split=data["split"],
            generation=data["generation"],
            counts=Counts(**data["counts"]),
            timings=Timings.from_dict(data["timings"]),
            typed=FileSeal(**data["typed"]),
            visible=None if data["visible"] is None else FileSeal(**data["visible"]),
            schema=data["schema"],
        )


def _seal_dict(seal: FileSeal) -> dict[str, Any]:
    return {"name": seal.name, "size": seal.size, "crc32": seal.crc32}


@dataclass(slots=True)
class Totals:
    """What the output holds, over all shards and runs. `rows` counts output rows: one per sample."""

    rows: int = 0
    num_input_rows: int = 0
    num_error_rows: int = 0  # input rows of which a sample failed
    errors: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    timings: Timings = field(default_factory=Timings)

    @property
    def cached_tokens(self) -> int:
        return self.timings.cached_tokens

    @property
    def latencies(self) -> dict[str, LogHistogram]:
        """queue_s, ttft_s, tpot_s, e2e_s."""
        return self.timings.latencies

    def add(self, counts: Counts, timings: Timings) -> None:
        self.rows += counts.num_output_rows
        self.num_input_rows += counts.num_input_rows
        self.num_error_rows += counts.num_error_rows
        self.prompt_tokens += counts.prompt_tokens
        self.completion_tokens += counts.completion_tokens
        self._add_errors(counts.errors)
        self.timings.merge(timings)

    def merge(self, other: Totals) -> None:
        """Take in another output's totals."""
        self.rows += other.rows
        self.num_input_rows += other.num_input_rows
        self.num_error_rows += other.num_error_rows
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self._add_errors(other.errors)
        self.timings.merge(other.timings)

    def _add_errors(self, errors: dict[str, int]) -> None:
        for kind, count in errors.items():
            self.errors[kind] = self.errors.get(kind, 0) + count
