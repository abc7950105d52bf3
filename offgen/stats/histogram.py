"""Percentiles of a stream in constant memory: counts in buckets that grow geometrically.

Knows no clock and no unit. Merging two histograms gives the histogram of both streams, so the sums over resumed runs
and over shards are exact. Source: Masson, Rim, Lee 2019 (DDSketch), without its collapsing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

RELATIVE_ERROR = 0.01
SMALLEST = 1e-9  # below this a value counts as zero (a nanosecond, where values are seconds)

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)


class LogHistogram:
    """Non-negative values; percentiles within 1% of the true one, count, mean, min and max exact.

    Written by `add` and `merge` only. A value that is not finite or is negative raises ValueError.
    """

    __slots__ = ("_buckets", "_zeros", "count", "max", "min", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}  # index i holds values in (gamma^(i-1), gamma^i]
        self._zeros = 0
        self.count = 0
        self.total = 0.0
        self.min: float | None = None
        self.max: float | None = None

    def add(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        if not 0.0 <= value < math.inf:
            raise ValueError(f"a histogram takes finite values from 0, not {value}")
        if value < SMALLEST:
            self._zeros += count
        else:
            index = math.ceil(math.log(value) / _LOG_GAMMA)
            self._buckets[index] = self._buckets.get(index, 0) + count
        self.count += count
        self.total += value * count
        self.min = value if self.min is None or value < self.min else self.min
        self.max = value if self.max is None or value > self.max else self.max

    def merge(self, other: LogHistogram) -> None:
        """Take in all of the other's values."""
        for index, count in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + count
        self._zeros += other._zeros
        self.count += other.count
        self.total += other.total
        if other.min is not None:
            self.min = other.min if self.min is None else min(self.min, other.min)
        if other.max is not None:
            self.max = other.max if self.max is None else max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        """None while empty."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The smallest value that at least `percent` % of the values do not exceed (nearest rank). None while empty."""
        if self.count == 0 or self.min is None or self.max is None:
            return None
        rank = max(1, math.ceil(self.count * percent / 100))
        seen = self._zeros
        if rank <= seen:
            return self.min if self.min < SMALLEST else 0.0
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if rank <= seen:
                middle = 2 * _GAMMA**index / (_GAMMA + 1)
                return min(max(middle, self.min), self.max)
        return self.max

    def summary(self) -> dict[str, float | None]:
        """{mean, p50, p90, p99, max}, as report.json has it."""
        return {
            "mean": self.mean,
            "p50": self.percentile(50),
            "p90": self.percentile(90),
            "p99": self.percentile(99),
            "max": self.max,
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` gives the same histogram back."""
        return {
            "count": self.count,
            "total": self.total,
            "min": self.min,
            "max": self.max,
            "zeros": self._zeros,
            "buckets": {str(index): count for index, count in sorted(self._buckets.items())},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LogHistogram:
        """The histogram that `to_dict` wrote."""
        histogram = cls()
        histogram.count = data["count"]
        histogram.total = data["total"]
        histogram.min = data["min"]
        histogram.max = data["max"]
        histogram._zeros = data["zeros"]
        histogram._buckets = {int(index): count for index, count in data["buckets"].items()}
        return histogram
