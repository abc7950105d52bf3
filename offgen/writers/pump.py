"""A bounded queue with a thread behind it: finished rows leave the engine's thread at once and reach the disk soon.

Knows neither rows nor files: items go to `handle(items, is_due)`, in order, on the thread. What `handle` raises
comes back to the next call from outside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
BATCH_ITEMS = 2048  # handed over without waiting for the interval
BATCH_BYTES = 8 << 20
MAX_ITEMS = 4 * BATCH_ITEMS  # beyond this `put` waits
MAX_BYTES = 4 * BATCH_BYTES


class Pump(Generic[Item]):
    """`is_due` is true at least once within `interval_s` after an item came: time to make all durable."""

    def __init__(self, handle: Callable[[Sequence[Item], bool], None], interval_s: float, *, name: str) -> None:
        self._handle = handle
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._items: list[Item] = []
        self._bytes = 0
        self._deadline: float | None = None  # of the oldest item that is not yet durable
        self._is_closing = False
        self._is_poked = False
        self._problem: BaseException | None = None
        self._is_waiting = False  # a `put` waits for room
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, items: Sequence[Item], num_bytes: int) -> None:
        """Hand over; waits while too much is under way. Raises what the thread died of."""
        with self._changed:
            while self._problem is None and (len(self._items) >= MAX_ITEMS or self._bytes >= MAX_BYTES):
                self._is_waiting = True
                self._changed.wait()
            self._raise_problem()
            self._items.extend(items)
            self._bytes += num_bytes
            if self._deadline is None:
                self._deadline = time.monotonic() + self._interval_s
                self._changed.notify_all()
            elif len(self._items) >= BATCH_ITEMS or self._bytes >= BATCH_BYTES:
                self._changed.notify_all()

    def poke(self) -> None:
        """Have `handle` called soon, with or without items."""
        with self._changed:
            self._is_poked = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what the thread died of."""
        with self._changed:
            self._raise_problem()

    def close(self) -> None:
        """Hand over all that is left, as due, and end the thread. Raises what it died of."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self._raise_problem()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._wait()
                    items, self._items, self._bytes = self._items, [], 0
                    now = time.monotonic()
                    is_last = self._is_closing
                    is_due = is_last or (self._deadline is not None and now >= self._deadline)
                    if is_due:
                        self._deadline = None
                    self._is_poked = False
                    if self._is_waiting:
                        self._is_waiting = False
                        self._changed.notify_all()
                self._handle(items, is_due)
                if is_last:
                    return
        except BaseException as problem:
            with self._changed:
                self._problem = problem
                self._items = []
                self._changed.notify_all()

    def _wait(self) -> None:
        while not (self._is_closing or self._is_poked):
            if len(self._items) >= BATCH_ITEMS or self._bytes >= BATCH_BYTES:
                return
            timeout = None if self._deadline is None else self._deadline - time.monotonic()
            if timeout is not None and timeout <= 0:
                return
            self._changed.wait(timeout)
