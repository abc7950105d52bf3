"""How long outputs will be, learned from the rows that finished. Knows counts only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from offgen.scheduling.request import Request

# upper edges of the length bins: about four to an octave, so that a mean within a bin is good to 10%
EDGES = sorted({round(2 ** (quarter / 4)) for quarter in range(4 * 22)})
PRIOR_ROWS = 4.0  # weight of the guess that stands in for rows as long as none has finished
ENOUGH_ROWS = 16  # from here on a bucket stands by itself


@dataclass(slots=True)
class Bucket:
    """Finished rows of one kind: lengths by bin, and how many ran into their limit (which says nothing of others')."""

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
        """Rows longer than `num_tokens`: how many stopped by themselves, their tokens, how many met their limit."""
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
        guess = _guess(made, limit)
        bucket = self._bucket(request)
        if bucket is None:
            return guess
        num_stopped, num_tokens, num_limited = bucket.tail(made)
        total = num_tokens + num_limited * limit + PRIOR_ROWS * guess
        return min(float(limit), max(total / (num_stopped + num_limited + PRIOR_ROWS), made + 1.0))

    def survival(self, request: Request, steps_ahead: Sequence[int]) -> list[float]:
        """The chance that it is still running so many steps from now, for each of `steps_ahead` (ascending)."""
        made = len(request.output_ids)
        limit = request.max_length - request.num_prompt_tokens
        guess = _guess(made, limit)
        bucket = self._bucket(request)
        if bucket is None:
            return [float(made + steps < guess) for steps in steps_ahead]
        num_stopped, _, num_limited = bucket.tail(made)
        total = num_stopped + num_limited + PRIOR_ROWS
        chances = []
        for steps in steps_ahead:
            later = made + steps
            if later >= limit:
                chances.append(0.0)
                continue
            alive = bucket.tail(later)[0] + num_limited + (PRIOR_ROWS if later < guess else 0.0)
            chances.append(alive / total)
        return chances

    def _bucket(self, request: Request) -> Bucket | None:
        bucket = None
        for key in _keys(request):
            bucket = self._buckets.get(key, bucket)
            if bucket is not None and bucket.num_rows >= ENOUGH_ROWS:
                break
        return bucket


def _guess(made: int, limit: int) -> float:
    """Of a length nothing is known about: half of what is allowed, and twice of what there is."""
    return float(min(limit, max(limit / 2, 2 * made)))


def _keys(request: Request) -> Iterator[tuple[int, int]]:
    limit = request.max_tokens.bit_length()
    yield request.num_prompt_tokens.bit_length(), limit
    yield -1, limit
