"""What the engine did over time, in about 200 points whatever the job's length. Knows no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

MAX_POINTS = 200
GAUGES = ("running", "waiting", "kv_used")
RATES = ("prefill_tokens_per_s", "decode_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters and gauges at one moment; kv_used is a share of the pool, from 0 to 1."""

    t_s: float
    running: int
    waiting: int
    kv_used: float
    prefill_tokens: int
    sampled_tokens: int


class Timeline:
    """Keeps readings; every second one is dropped when there are too many, so that memory stays constant."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []
        self._stride = 1
        self._seen = 0

    def add(self, reading: Reading) -> None:
        """Take a reading; they come at a steady pace."""
        if self._seen % self._stride == 0:
            self._readings.append(reading)
            if len(self._readings) >= 2 * MAX_POINTS:
                self._readings = self._readings[::2]
                self._stride *= 2
        self._seen += 1

    def points(self, *, offset_s: float = 0.0) -> list[dict[str, Any]]:
        """As report.json has them: gauges as read, rates since the point before. At most about 200."""
        readings = [Reading(0.0, 0, 0, 0.0, 0, 0), *self._readings]
        made = []
        for before, reading in pairwise(readings):
            width_s = reading.t_s - before.t_s
            if width_s <= 0:
                continue
            made.append(
                {
                    "t_s": round(reading.t_s + offset_s, 3),
                    "running": reading.running,
                    "waiting": reading.waiting,
                    "kv_used": round(reading.kv_used, 4),
                    "prefill_tokens_per_s": round((reading.prefill_tokens - before.prefill_tokens) / width_s, 2),
                    "decode_tokens_per_s": round((reading.sampled_tokens - before.sampled_tokens) / width_s, 2),
                }
            )
        return thinned(made)


def thinned(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours merged until there are at most 200: rates by their time, gauges as the later one read."""
    kept = [dict(point) for point in points]
    while len(kept) > MAX_POINTS:
        merged = []
        start_s = 0.0
        for first, second in zip(kept[::2], kept[1::2], strict=False):
            merged.append(_merge(first, second, start_s))
            start_s = second["t_s"]
        kept = [*merged, kept[-1]] if len(kept) % 2 else merged
    return kept


def _merge(first: Mapping[str, Any], second: Mapping[str, Any], start_s: float) -> dict[str, Any]:
    width_s = second["t_s"] - start_s
    share = (first["t_s"] - start_s) / width_s if width_s > 0 else 0.5
    rates = {rate: round(share * first[rate] + (1 - share) * second[rate], 2) for rate in RATES}
    return {**second, **rates}
