"""How long outputs will be, learned from the rows that finished. Knows counts only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from offgen.scheduling.request import Request

# upper edges of the length bins: about four to an octave, so that a mean within a bin is good to 10%
EDGES = sorted({round(2 ** (quarter / 4)) for quarter in range(4 * 22)})
# as many imagined rows that ran into their limit: until rows have finished, a forecast is the worst case
PRIOR_ROWS = 4.0
ENOUGH_ROWS = 16  # from here on a bucket stands by itself


@dataclass(slots=True)
class Bucket:
    """Finished rows of one kind: lengths by bin, and how many of them ran into their limit (their length is no forecast)."""

    num_rows: int = 0
    num_stopped: list[int] = field(default_factory=lambda: [0] * len(EDGES))
    num_tokens: list[int] = field(default_factory=lambda: [0] * len(EDGES))
    num_limited: list[int] = field(default_factory=lambda: [0] * len(EDGES))
    num_summed: int = 0  # num_rows when the tails were summed
    tails: list[tuple[int, int, int]] = field(default_factory=list)  # from each bin on: stopped, their tokens, limited

    def observe(self, num_tokens: int, *, limited: bool) -> None:
        place = min(bisect_left(EDGES, num_tokens), len(EDGES) - 1)
        self.num_rows += 1
        if limited:
            self.num_limited[place] += 1
        else:
            self.num_stopped[place] += 1
            self.num_tokens[place] += num_tokens

    def tail(self, num_tokens: int) -> tuple[int, int, int]:
        """Rows longer than `num_tokens`: how many stopped by themselves, their tokens, how many ran into their limit."""
        if not self.tails or self.num_rows > 1.05 * self.num_summed:
            self._sum_tails()
        return self.tails[bisect_left(EDGES, num_tokens + 1)]

    def _sum_tails(self) -> None:
        self.num_summed = self.num_rows
        sums = (0, 0, 0)
        tails = [sums]
        for stopped, tokens, limited in zip(
            reversed(self.num_stopped), reversed(self.num_tokens), reversed(self.num_limited), strict=True
        ):
            sums = (sums[0] + stopped, sums[1] + tokens, sums[2] + limited)
            tails.append(sums)
        self.tails = tails[::-1]


class LengthForecast:
    """Buckets by prompt length and by max_tokens, each in octaves; by max_tokens alone while a bucket is thin."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._buckets: dict[tuple[int, int], Bucket] = {}

    def observe(self, request: Request) -> None:
        """Learn from a finished request."""
        self.num_rows += 1
        limited = request.finish_reason == "length"
        for key in _keys(request):
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = Bucket()
            bucket.observe(len(request.output_ids), limited=limited)

    def expect(self, request: Request) -> float:
        """Output tokens in all, given how many it has made: never fewer than one more, never above its limit."""
        made = len(request.output_ids)
        limit = request.max_length - request.num_prompt_tokens
        bucket = None
        for key in _keys(request):
            bucket = self._buckets.get(key, bucket)
            if bucket is not None and bucket.num_rows >= ENOUGH_ROWS:
                break
        if bucket is None:
            return float(limit)
        num_stopped, num_tokens, num_limited = bucket.tail(made)
        weight = num_limited + PRIOR_ROWS
        expected = (num_tokens + weight * limit) / (num_stopped + weight)
        return min(float(limit), max(expected, made + 1.0))


def _keys(request: Request) -> Iterator[tuple[int, int]]:
    limit = request.max_tokens.bit_length()
    yield request.num_prompt_tokens.bit_length(), limit
    yield -1, limit
