"""Who sits where: seats 0 .. num_seats - 1, the lowest free one first. Knows no blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from offgen.scheduling.request import Request


class Seats:
    """Writer of Request.seat."""

    def __init__(self, num_seats: int) -> None:
        self._free = list(range(num_seats))
        self._taken: dict[int, Request] = {}
        self._left: list[int] = []

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._taken.values())

    def __getitem__(self, seat: int) -> Request:
        return self._taken[seat]

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, request: Request) -> None:
        request.seat = heappop(self._free)
        self._taken[request.seat] = request

    def leave(self, request: Request) -> None:
        del self._taken[request.seat]
        self._left.append(request.seat)
        heappush(self._free, request.seat)
        request.seat = -1

    def take_left(self) -> list[int]:
        """Seats vacated since the last call."""
        left, self._left = self._left, []
        return left

    def put_back_left(self, left: Sequence[int]) -> None:
        """Whoever was told that these were vacated may not have heard: the next call of `take_left` says it again."""
        self._left += left

    def newest(self) -> Request:
        """The row admitted last (a preempted row keeps its age)."""
        return max(self._taken.values(), key=lambda request: request.admission)

    def check(self) -> None:
        """Each seat is free or taken by one row that knows it."""
        assert all(request.seat == seat for seat, request in self._taken.items()), "a row is not on its seat"
        assert not self._taken.keys() & set(self._free), "a seat is both free and taken"
        assert len({request.admission for request in self}) == len(self), "two rows of one age"
