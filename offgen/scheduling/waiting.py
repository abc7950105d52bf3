"""The look-ahead window: rows that wait for a seat, and who is next. Tells the cache what they want."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator

from offgen.scheduling.length_forecast import LengthForecast
from offgen.scheduling.policy import ORDERS
from offgen.scheduling.prefix_cache import PrefixCache
from offgen.scheduling.request import Request

# a row that saw this many windows' worth of rows go first is next, whatever the policy: nobody waits for ever
PATIENCE_WINDOWS = 2
MIN_REPLAN_ROWS = 32


class WaitingQueue:
    """Preempted rows first, by age; then new rows by a plan.

    The plan is made again when the window has changed by a quarter, or when twice as many rows have finished as its
    forecast knew.
    """

    def __init__(self, order_policy: str, window: int, forecast: LengthForecast, cache: PrefixCache | None) -> None:
        self.num_prompt_tokens = 0
        self._order = ORDERS[order_policy]
        self._keeps_input_order = order_policy == "input"
        self._forecast = forecast
        self._cache = cache
        self._patience = PATIENCE_WINDOWS * window
        self._preempted: list[Request] = []
        self._arrivals: deque[tuple[Request, int]] = (
            deque()
        )  # new rows (and admitted ones not yet dropped), num_popped then
        self._planned: list[Request] = []  # the next one last
        self._unplanned: list[Request] = []
        self._num_new = 0
        self._num_popped = 0
        self._replan_at_rows = 1

    def __len__(self) -> int:
        return len(self._preempted) + self._num_new

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        yield from (request for request, _ in self._arrivals if request.admission < 0)

    @property
    def num_new(self) -> int:
        return self._num_new

    @property
    def oldest_arrival_s(self) -> float:
        """When the row that waits longest came. There must be one."""
        return min(request.arrived_s for request in (*self._preempted, *self._oldest_new()))

    def add(self, request: Request) -> None:
        """A new row enters the window."""
        self._num_new += 1
        self.num_prompt_tokens += request.num_prompt_tokens
        self._arrivals.append((request, self._num_popped))
        if not self._keeps_input_order:
            self._unplanned.append(request)
        self._want(request)

    def put_back(self, request: Request) -> None:
        """A preempted row waits again, before every new one."""
        insort(self._preempted, request, key=lambda other: other.admission)
        self._want(request)

    def peek(self) -> Request | None:
        """Who is next."""
        if self._preempted:
            return self._preempted[0]
        if not self._num_new:
            return None
        oldest, num_popped = self._oldest_new()[0], self._arrivals[0][1]
        if self._keeps_input_order or self._num_popped - num_popped >= self._patience:
            return oldest
        self._replan_if_due()
        while self._planned[-1].admission >= 0:
            self._planned.pop()
        return self._planned[-1]

    def pop(self, request: Request) -> None:
        """The row that peek() named is admitted."""
        self._unwant(request)
        if self._preempted:
            self._preempted.remove(request)
            return
        if self._planned and self._planned[-1] is request:
            self._planned.pop()
        if self._arrivals[0][0] is request:
            self._arrivals.popleft()
        self._num_new -= 1
        self._num_popped += 1
        self.num_prompt_tokens -= request.num_prompt_tokens

    def upcoming(self, count: int) -> list[Request]:
        """The next `count` rows, as things stand now."""
        if self.peek() is None:
            return []
        rows = self._preempted[:count]
        line = (request for request, _ in self._arrivals) if self._keeps_input_order else reversed(self._planned)
        for request in line:
            if len(rows) >= count:
                break
            if request.admission < 0:
                rows.append(request)
        return rows

    def remove_preempted(self, request: Request) -> None:
        """It ended by the id of a step that was under way when it was preempted."""
        self._preempted.remove(request)
        self._unwant(request)

    def clear(self) -> None:
        for request in self:
            self._unwant(request)
        self._preempted.clear()
        self._arrivals.clear()
        self._planned.clear()
        self._unplanned.clear()
        self._num_new = self.num_prompt_tokens = 0

    def check(self) -> None:
        """Counts are right, and the plan names every new row once."""
        new = [request for request, _ in self._arrivals if request.admission < 0]
        assert len(new) == self._num_new, "new rows are miscounted"
        assert sum(request.num_prompt_tokens for request in new) == self.num_prompt_tokens
        if not self._keeps_input_order:
            planned = [request for request in (*self._planned, *self._unplanned) if request.admission < 0]
            assert {id(request) for request in planned} == {id(request) for request in new}
            assert len(planned) == len(new), "a row is planned twice"
        ages = [request.admission for request in self._preempted]
        assert ages == sorted(ages), "preempted rows are out of order"

    def _oldest_new(self) -> list[Request]:
        while self._arrivals and self._arrivals[0][0].admission >= 0:
            self._arrivals.popleft()
        return [self._arrivals[0][0]] if self._arrivals else []

    def _replan_if_due(self) -> None:
        num_planned = self._num_new - len(self._unplanned)
        learned = self._forecast.num_rows >= self._replan_at_rows
        if num_planned > 0 and not learned and len(self._unplanned) < max(MIN_REPLAN_ROWS, num_planned // 4):
            return
        self._replan_at_rows = max(2 * self._forecast.num_rows, 1)
        self._unplanned.clear()
        self._arrivals = deque(arrival for arrival in self._arrivals if arrival[0].admission < 0)
        rows = [request for request, _ in self._arrivals]
        for request in rows:
            request.expected_tokens = self._forecast.expect(request)
        self._planned = self._order(rows, self._cache.holds if self._cache is not None else _holds_nothing)
        self._planned.reverse()

    def _want(self, request: Request) -> None:
        if self._cache is not None and request.reads_cache:
            self._cache.want(request.block_hashes)

    def _unwant(self, request: Request) -> None:
        if self._cache is not None and request.reads_cache:
            self._cache.unwant(request.block_hashes)


def _holds_nothing(name: bytes) -> bool:
    return False
