"""How many rows run at once when the end of the job is in sight. Knows counts only.

A job of known lengths takes as many steps as its longest row is long, however its other rows are laid. Started all at
once, they fill the first steps and leave the longest row alone in the last ones, where a step costs as much for one row
as for eight: the weights are read all the same. Spread over those steps, the same tokens cost less.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from offgen.scheduling.request import Request
from offgen.scheduling.waiting import WaitingQueue

MIN_ROWS = 8  # below it rows are nearly free
SLACK = 1.1  # more rows than an even spread needs: chunks of prompts take their part of a step
MOST_WAITING = 1024  # with more rows the end is not in sight, and the seats are full anyway
STEPS_BETWEEN_LOOKS = 8
NO_LIMIT = 1 << 30


class Pace:
    """Holds rows back only if the longest row runs or is next, all rows end by count, and no others come."""

    def __init__(self) -> None:
        self._looked_at = -STEPS_BETWEEN_LOOKS
        self._limit = NO_LIMIT

    def most_rows(self, running: Iterable[Request], waiting: WaitingQueue, *, step: int, more_is_coming: bool) -> int:
        """Rows to run at once in this step."""
        following = None if more_is_coming or len(waiting) > MOST_WAITING else waiting.peek()
        if following is None:
            return NO_LIMIT
        if step - self._looked_at >= STEPS_BETWEEN_LOOKS:
            self._looked_at = step
            self._limit = self._look(running, waiting, following)
        return self._limit

    def _look(self, running: Iterable[Request], waiting: WaitingQueue, following: Request) -> int:
        total, longest = 0, following.max_length - following.num_tokens
        for request in running:
            if request.stop_ids:
                return NO_LIMIT
            left = request.max_length - request.num_tokens
            total += left
            longest = max(longest, left)
        for request in waiting:
            left = request.max_length - request.num_tokens
            if request.stop_ids or left > longest:
                return NO_LIMIT
            total += left
        return max(MIN_ROWS, ceil(SLACK * total / max(1, longest)))
