"""Whether one more row fits, seen over the coming steps and not just now. Knows forecasts and counts; takes no block.

Running rows grow by a token a step until they end and give their blocks back. From what is known of output lengths,
each row has a chance to be still there in a few periods ahead; the plan adds up the blocks expected to be in use then,
and admits while mean and spread stay in the pool: it is full, yet a preemption (a whole prefill lost) is rare. A
wrong forecast costs a preemption, never the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from offgen.scheduling.length_forecast import LengthForecast
from offgen.scheduling.request import Request

# ends of the periods that are looked at, in blocks a row grows by then
BLOCKS_AHEAD = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
# before so many rows have finished nothing is known: what fits now starts, until the first preemption
ROWS_UNTIL_PLANNING = 16
STEPS_BETWEEN_LOOKS = 16  # a row's outlook is taken anew after so many steps
SPREAD = 1.0  # standard deviations kept free
MARGIN_STEP = 0.01  # of the pool, kept free besides: more after each preemption,
MAX_MARGIN = 0.2
MARGIN_DECAY = 0.95  # less after each row that finished


@dataclass(slots=True)
class Outlook:
    """Of one row, in each period ahead: blocks it is expected to hold more (or less) than now, and their variance."""

    changes: list[float]
    variances: list[float]


class MemoryPlan:
    def __init__(self, num_blocks: int, block_size: int, forecast: LengthForecast) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._forecast = forecast
        self._starts = [block_size * blocks for blocks in (0, *BLOCKS_AHEAD[:-1])]
        self._margin = 0.0
        self._num_promised = 0  # blocks of all running rows at their longest
        self._outlooks: dict[int, Outlook] = {}  # of the running rows, by arrival
        self._sum = Outlook([], [])
        self._looked_at = -STEPS_BETWEEN_LOOKS
        self._refused_at = -1
        self._was_wrong = False

    def admits(
        self, request: Request, *, num_missing: int, num_live: int, running: Iterable[Request], step: int
    ) -> bool:
        """May the row start now? `num_missing` more blocks are taken at once; they are available."""
        if self._num_promised + self._most_blocks(request) <= self._num_blocks:
            return True
        if self._forecast.num_rows < ROWS_UNTIL_PLANNING and not self._was_wrong:
            return True
        if self._refused_at == step:
            return False
        if step - self._looked_at >= STEPS_BETWEEN_LOOKS:
            self._look(running)
            self._looked_at = step
        own = self._outlook(request, num_missing)
        room = self._num_blocks * (1 - self._margin) - num_live - num_missing
        sums = self._sum
        for change, variance, own_change, own_variance in zip(
            sums.changes, sums.variances, own.changes, own.variances, strict=True
        ):
            if change + own_change + SPREAD * sqrt(max(0.0, variance + own_variance)) > room:
                self._refused_at = step
                return False
        return True

    def entered(self, request: Request, num_own: int) -> None:
        """It runs, on `num_own` blocks that it does not share."""
        self._num_promised += self._most_blocks(request)
        if self._sum.changes:
            self._add(request, self._outlook(request, num_own))

    def left(self, request: Request) -> None:
        self._num_promised -= self._most_blocks(request)
        outlook = self._outlooks.pop(request.arrival, None)
        if outlook is not None:
            sums = self._sum
            sums.changes = [a - b for a, b in zip(sums.changes, outlook.changes, strict=True)]
            sums.variances = [a - b for a, b in zip(sums.variances, outlook.variances, strict=True)]

    def preempted(self) -> None:
        self._was_wrong = True
        self._margin = min(MAX_MARGIN, self._margin + MARGIN_STEP)

    def finished(self) -> None:
        self._margin *= MARGIN_DECAY

    def _most_blocks(self, request: Request) -> int:
        return -(-request.max_length // self._block_size)

    def _look(self, running: Iterable[Request]) -> None:
        self._outlooks.clear()
        self._sum = Outlook([0.0] * len(BLOCKS_AHEAD), [0.0] * len(BLOCKS_AHEAD))
        for request in running:
            self._add(request, self._outlook(request, len(request.block_ids) - request.num_shared_blocks))

    def _add(self, request: Request, outlook: Outlook) -> None:
        sums = self._sum
        self._outlooks[request.arrival] = outlook
        sums.changes = [a + b for a, b in zip(sums.changes, outlook.changes, strict=True)]
        sums.variances = [a + b for a, b in zip(sums.variances, outlook.variances, strict=True)]

    def _outlook(self, request: Request, num_own: int) -> Outlook:
        """A row is there in a period if it is at its start, and then as long as it can be by its end."""
        most = self._most_blocks(request) - request.num_tokens // self._block_size
        changes, variances = [], []
        for chance, grown in zip(self._forecast.survival(request, self._starts), BLOCKS_AHEAD, strict=True):
            held = num_own + min(grown, most)
            changes.append(chance * held - num_own)
            variances.append(chance * (1 - chance) * held * held)
        return Outlook(changes, variances)
