"""Batching modes, beside the loop: when rows may start, what they reserve, and whether a finished row keeps its seat.

`static` is what legacy batchers do, kept for comparison and for teaching: rows start together, KV is reserved for the
worst case, and a finished row is still computed until the batch's longest ends. `dynamic` closes a batch by size or by
waiting time and then runs it as static.
"""

from __future__ import annotations

from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.request import Request
from offgen.scheduling.waiting import WaitingQueue


class Continuous:
    """A finished row leaves and a waiting one enters at every step."""

    keeps_seats = False

    @property
    def is_sealed(self) -> bool:
        """No row starts before all have left."""
        return False

    def is_open(self, waiting: WaitingQueue, num_running: int, *, now: float, may_grow: bool) -> bool:
        """May waiting rows start in this step? `may_grow`: more are coming, and the window has room for them."""
        return True

    def seal(self) -> None:
        """No more rows fit now."""

    def reserved_tokens(self, request: Request) -> int:
        """Tokens a starting row gets blocks for."""
        return request.num_tokens

    def opens_at_s(self, waiting: WaitingQueue) -> float | None:
        """When waiting alone lets rows start; None if something else must happen first."""
        return None


class Static(Continuous):
    """Rows start together, in one step or, where the token budget ends, in the next ones; then the batch is sealed."""

    keeps_seats = True

    def __init__(self, config: SchedulerConfig) -> None:
        self._num_seats = config.num_seats
        self._max_length = config.max_length
        self._is_filling = False
        self._horizon = 0  # the batch's longest output

    def is_open(self, waiting: WaitingQueue, num_running: int, *, now: float, may_grow: bool) -> bool:
        if not num_running:
            is_full = len(waiting) >= self._num_seats
            self._is_filling = is_full or self._may_close(waiting, now=now, may_grow=may_grow)
            if self._is_filling:
                self._horizon = max(request.max_tokens for request in waiting.upcoming(self._num_seats))
        return self._is_filling

    @property
    def is_sealed(self) -> bool:
        return not self._is_filling

    def seal(self) -> None:
        self._is_filling = False

    def reserved_tokens(self, request: Request) -> int:
        return max(request.max_length, min(request.num_prompt_tokens + self._horizon, self._max_length))

    def _may_close(self, waiting: WaitingQueue, *, now: float, may_grow: bool) -> bool:
        """May a batch start that is not full?"""
        return not may_grow


class Dynamic(Static):
    """A batch closes when it is full, or when its oldest row has waited long enough."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._wait_s = config.dynamic_wait_s

    def _may_close(self, waiting: WaitingQueue, *, now: float, may_grow: bool) -> bool:
        opens_at = self.opens_at_s(waiting)
        return opens_at is not None and now >= opens_at

    def opens_at_s(self, waiting: WaitingQueue) -> float | None:
        return waiting.oldest_arrival_s + self._wait_s if len(waiting) else None


def open_mode(config: SchedulerConfig) -> Continuous:
    """The mode that `config.batching` names."""
    if config.batching == "static":
        return Static(config)
    if config.batching == "dynamic":
        return Dynamic(config)
    return Continuous()
