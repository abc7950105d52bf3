"""The look-ahead window: rows that wait for a seat, in the order the policy wants them. Knows no pool."""

from __future__ import annotations

from bisect import insort
from collections import deque

from offgen.scheduling.request import Request


class WaitingQueue:
    """Preempted rows first, by age; then new rows."""

    def __init__(self) -> None:
        self._preempted: list[Request] = []
        self._new: deque[Request] = deque()
        self.num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._preempted) + len(self._new)

    @property
    def num_new(self) -> int:
        return len(self._new)

    def add(self, request: Request) -> None:
        self._new.append(request)
        self.num_prompt_tokens += request.num_prompt_tokens

    def put_back(self, request: Request) -> None:
        """A preempted row waits again, before every new one."""
        insort(self._preempted, request, key=lambda other: other.admission)

    def peek(self) -> Request | None:
        if self._preempted:
            return self._preempted[0]
        return self._new[0] if self._new else None

    def pop(self) -> Request:
        if self._preempted:
            return self._preempted.pop(0)
        request = self._new.popleft()
        self.num_prompt_tokens -= request.num_prompt_tokens
        return request

    def remove_preempted(self, request: Request) -> None:
        self._preempted.remove(request)

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from self._preempted
        yield from self._new
