"""Whether one more row fits, seen over the coming steps and not just now. Knows forecasts and counts; takes no block.

Running rows grow by a token a step until they end and give their blocks back. The plan adds up that future for the
running rows and the candidate, and admits while its peak stays in the pool: the pool is full, yet a preemption (a whole
prefill lost) is rare. A wrong forecast costs a preemption, never the job.
"""

from __future__ import annotations

from collections.abc import Iterable

from offgen.scheduling.length_forecast import LengthForecast
from offgen.scheduling.request import Request

STEPS_UNTIL_RETRY = 8  # a refused row is looked at again after so many steps, or when a row leaves
MARGIN_STEP = 0.02  # of the pool, kept free for wrong forecasts: more after each preemption,
MAX_MARGIN = 0.3
MARGIN_DECAY = 0.98  # a little less after each row that finished


class MemoryPlan:
    def __init__(self, num_blocks: int, block_size: int, forecast: LengthForecast) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._forecast = forecast
        self._margin = 0.0
        self._num_promised = 0  # blocks of all running rows at their longest
        self._retry_at = -1

    def admits(
        self, request: Request, *, num_missing: int, num_live: int, running: Iterable[Request], step: int
    ) -> bool:
        """May the row start now? `num_missing` more blocks are taken at once; they are available."""
        if self._num_promised + self._most_blocks(request) <= self._num_blocks:
            return True
        if step < self._retry_at:
            return False
        if self._peak(request, num_missing, num_live, running) <= self._num_blocks * (1 - self._margin):
            return True
        self._retry_at = step + STEPS_UNTIL_RETRY
        return False

    def entered(self, request: Request) -> None:
        self._num_promised += self._most_blocks(request)

    def left(self, request: Request) -> None:
        self._num_promised -= self._most_blocks(request)
        self._retry_at = -1

    def preempted(self) -> None:
        self._margin = min(MAX_MARGIN, self._margin + MARGIN_STEP)

    def finished(self) -> None:
        self._margin *= MARGIN_DECAY

    def _most_blocks(self, request: Request) -> int:
        return -(-request.max_length // self._block_size)

    def _peak(self, request: Request, num_missing: int, num_live: int, running: Iterable[Request]) -> float:
        """The most blocks in use at once, if every row ends when it is expected to."""
        size = self._block_size
        expect = self._forecast.expect
        rows = sorted(
            [
                (expect(row) - len(row.output_ids), len(row.block_ids) - row.num_cached_tokens // size)
                for row in running
                if not row.is_finished
            ]
            + [(expect(request) - len(request.output_ids), num_missing)]
        )
        peak = 0.0
        num_alive = len(rows)
        in_use = float(num_live + num_missing)  # less what ended, plus what that had grown by then
        for remaining, num_own in rows:
            peak = max(peak, in_use + num_alive * remaining / size)
            in_use -= num_own
            num_alive -= 1
        return peak
