"""Finds stop strings in text that grows. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    stop: str
    start: int  # in the completion's text


def find_stop(text: str, stops: Sequence[str], *, searched: int) -> Match | None:
    """The match that starts first among those that end beyond `searched`; of several there, the stop named first."""
    best: Match | None = None
    for stop in stops:
        start = text.find(stop, max(0, searched - len(stop) + 1))
        if start >= 0 and (best is None or start < best.start):
            best = Match(stop, start)
    return best
