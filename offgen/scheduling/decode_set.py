"""The rows that decode: they advance together, one token a tick. Knows clocks and lists; knows no pool.

A tick costs the same for one row and for a thousand: what happens to a row, and when, is written in a calendar as soon
as it is known (its next block, its last token), and the lists that a batch shows are copied only when rows changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from offgen.scheduling.request import Request

T = TypeVar("T")
Calendar = dict[int, dict[Request, None]]  # by tick, in the order they were entered


# takes the id of a row that had ended before it was known; a C function, for static batches call it most of the time
ignore_id: Callable[[int], None] = deque[int](maxlen=0).append


@dataclass(slots=True)
class DecodeLists:
    """The decode rows of one batch, in parallel lists; shared by batches between which nothing changed."""

    requests: list[Request] = field(default_factory=list)
    seats: list[int] = field(default_factory=list)
    request_ids: list[int] = field(default_factory=list)
    takers: list[Callable[[int], None]] = field(default_factory=list)  # each row's output_ids.append, or ignore_id
    num_ignored: int = 0
    stop_ids: frozenset[int] = frozenset()  # of all rows: ids that need a closer look

    def copy(self, stop_ids: frozenset[int]) -> DecodeLists:
        return DecodeLists(
            self.requests[:], self.seats[:], self.request_ids[:], self.takers[:], self.num_ignored, stop_ids
        )

    def ignore(self, index: int) -> None:
        """The id of the row at this place is nobody's."""
        if self.takers[index] is not ignore_id:
            self.takers[index] = ignore_id
            self.num_ignored += 1


class DecodeSet:
    """Writer of Request.decode_index, grow_tick and end_tick."""

    def __init__(self, block_size: int) -> None:
        self.tick = 0
        self._block_size = block_size
        self._rows = DecodeLists()
        self._shown: DecodeLists | None = None
        self._growing: Calendar = {}
        self._ending: Calendar = {}
        self._stop_sets: dict[frozenset[int], int] = {}
        self._stop_ids: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self._rows.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._rows.requests)

    def lists(self) -> DecodeLists:
        """The rows as they stand; the same object as long as no row came or went."""
        if self._shown is None:
            self._shown = self._rows.copy(self._stop_ids)
        return self._shown

    def join(self, request: Request, *, num_tokens: int, max_length: int) -> None:
        """From the next tick on the row makes one token a tick. `num_tokens` counts the one it is making now."""
        rows = self._rows
        request.decode_index = len(rows.requests)
        rows.requests.append(request)
        rows.seats.append(request.seat)
        rows.request_ids.append(request.request_id)
        rows.takers.append(request.output_ids.append)
        self._shown = None
        self.set_end(request, self.tick + max_length - num_tokens)
        # tick + k computes position num_tokens + k - 2; the first position without a block is block_size * held
        self._set_growth(request, self.tick + len(request.block_ids) * self._block_size - num_tokens + 2)
        if request.stop_ids:
            count = self._stop_sets.get(request.stop_ids, 0)
            self._stop_sets[request.stop_ids] = count + 1
            if not count:
                self._stop_ids |= request.stop_ids

    def leave(self, request: Request) -> None:
        """The row is in no later batch; the last one takes its place in the lists."""
        rows, index = self._rows, request.decode_index
        rows.requests[-1].decode_index = index
        rows.num_ignored -= rows.takers[index] is ignore_id
        _move_last(rows.requests, index)
        _move_last(rows.seats, index)
        _move_last(rows.request_ids, index)
        _move_last(rows.takers, index)
        _strike(self._growing, request.grow_tick, request)
        _strike(self._ending, request.end_tick, request)
        request.decode_index = request.grow_tick = request.end_tick = -1
        self._shown = None
        if request.stop_ids:
            self._stop_sets[request.stop_ids] -= 1
            if not self._stop_sets[request.stop_ids]:
                del self._stop_sets[request.stop_ids]
                self._stop_ids = frozenset().union(*self._stop_sets)

    def mute(self, request: Request) -> None:
        """The row stays and is computed, but its ids from the next batch on are ignored."""
        self._rows.ignore(request.decode_index)
        self._shown = None

    def set_end(self, request: Request, tick: int) -> None:
        """The row makes its last token at this tick."""
        _strike(self._ending, request.end_tick, request)
        request.end_tick = tick
        self._ending.setdefault(tick, {})[request] = None

    def advance(self) -> list[Request]:
        """Start the next tick; returns the rows that need a block in it, oldest first."""
        self.tick += 1
        due = self._growing.pop(self.tick, None)
        if due is None:
            return []
        for request in due:
            request.grow_tick = -1
        return sorted(due, key=lambda request: request.admission)

    def grew(self, request: Request) -> None:
        """The row got its block."""
        self._set_growth(request, self.tick + self._block_size)

    def take_ending(self) -> list[Request]:
        """The rows whose last token this tick makes."""
        due = self._ending.pop(self.tick, None)
        if due is None:
            return []
        for request in due:
            request.end_tick = -1
        return list(due)

    def num_quiet_ticks(self) -> int:
        """Ticks before the next one in which a row grows or ends."""
        return min(min(calendar) for calendar in (self._growing, self._ending) if calendar) - self.tick - 1

    def repeat(self, num_ticks: int, token_id: int) -> int:
        """So many quiet ticks at once; returns the tokens that rows made."""
        self.tick += num_ticks
        ids = [token_id] * num_ticks
        rows = self._rows
        for request, take_id in zip(rows.requests, rows.takers, strict=True):
            if take_id is not ignore_id:
                request.output_ids += ids
        return num_ticks * (len(rows.requests) - rows.num_ignored)

    def check(self) -> None:
        """The parallel lists agree, and every row's next events are in the calendar."""
        rows = self._rows
        for index, request in enumerate(rows.requests):
            assert request.decode_index == index, "a row is not where it thinks"
            assert rows.seats[index] == request.seat and rows.request_ids[index] == request.request_id
            assert request.end_tick > self.tick, "a row decodes past its end"
            assert request in self._ending[request.end_tick]
            assert request.grow_tick < 0 or request in self._growing[request.grow_tick]
        assert len(rows.requests) == len(rows.seats) == len(rows.request_ids) == len(rows.takers)

    def _set_growth(self, request: Request, tick: int) -> None:
        if tick <= request.end_tick:
            request.grow_tick = tick
            self._growing.setdefault(tick, {})[request] = None


def _strike(calendar: Calendar, tick: int, request: Request) -> None:
    """What is over is not kept: a finished request would live as long as its limit is far."""
    if tick >= 0:
        due = calendar[tick]
        del due[request]
        if not due:
            del calendar[tick]


def _move_last(values: list[T], index: int) -> None:
    last = values.pop()
    if index < len(values):
        values[index] = last
