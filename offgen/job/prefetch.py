"""Reads, renders and tokenizes on a thread of its own, a bounded number of prompts ahead of the engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from offgen.records import Prompt

CAPACITY = 4096  # prompts held at most, beside the scheduler's own window
POLL_S = 0.1  # how soon a waiting `take` sees `stop`, which a signal handler calls and which so may hold no lock


class Prefetch:
    """A source of prompts (the engine's PromptSource) fed by a thread. `take` raises what the thread raised.

    The deque is appended to by the thread and emptied by `take`, each atomic; the condition is only for waiting.
    """

    def __init__(self, prompts: Iterator[Prompt], *, capacity: int = CAPACITY) -> None:
        self._prompts = prompts
        self._capacity = capacity
        self.num_prompts = 0  # made so far; final once exhausted
        self._ready: deque[Prompt] = deque()
        self._changed = threading.Condition()
        self._is_hungry = False  # `take` waits
        self._is_full = False  # the thread waits
        self._is_done = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._fill, name="offgen-reader", daemon=True)
        self._thread.start()

    @property
    def is_exhausted(self) -> bool:
        """True once every prompt has been taken."""
        return self._is_done and not self._ready and self._error is None

    def take(self, max_count: int, *, wait: bool) -> Sequence[Prompt]:
        """At most max_count prompts that are ready; with `wait`, one at least while there are more and it runs."""
        if wait and not self._ready:
            self._wait_for_prompt()
        if self._is_done and not self._ready and self._error is not None:
            raise self._error
        taken = [self._ready.popleft() for _ in range(min(max_count, len(self._ready)))]
        if self._is_full and len(self._ready) <= self._capacity // 2:
            with self._changed:
                self._changed.notify_all()
        return taken

    def __iter__(self) -> Iterator[Prompt]:
        """One after the other, for an engine that has no window."""
        while prompts := self.take(CAPACITY, wait=True):
            yield from prompts

    def stop(self) -> None:
        """Make `take` return at once. Only sets a flag."""
        self._is_stopped = True

    def close(self) -> None:
        """End the thread. One that hangs in a read (stdin, a network) is left behind: it holds nothing to lose."""
        self._is_stopped = True
        with self._changed:
            self._changed.notify_all()
        self._thread.join(timeout=1.0)

    def _wait_for_prompt(self) -> None:
        with self._changed:
            self._is_hungry = True
            while not (self._ready or self._is_done or self._is_stopped):
                self._changed.wait(POLL_S)
            self._is_hungry = False

    def _fill(self) -> None:
        try:
            for prompt in self._prompts:
                self.num_prompts += 1
                self._ready.append(prompt)
                if self._is_hungry:
                    with self._changed:
                        self._changed.notify_all()
                if len(self._ready) >= self._capacity:
                    self._wait_for_room()
                if self._is_stopped:
                    break
        except BaseException as error:
            self._error = error
        finally:
            close = getattr(self._prompts, "close", None)
            if close is not None:
                close()
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _wait_for_room(self) -> None:
        with self._changed:
            self._is_full = True
            while len(self._ready) > self._capacity // 2 and not self._is_stopped:
                self._changed.wait(POLL_S)
            self._is_full = False
