"""What signals do to a job: the first asks it to stop, the second ends it at once. Knows no engine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# `timeout` and job schedulers send the same signal to the process and to its group: that is one request, not two
SAME_REQUEST_S = 0.1

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(BaseException):
    """A signal ended what was under way. No Exception: nothing but the job itself may catch it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """As shells report it: 128 and the signal's number."""
        return 128 + self.signum


class Interrupts:
    """Handlers for the time of a `with` block. Outside the main thread it does nothing: signals go elsewhere."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._first_s = 0.0
        self._raises = False
        self._on_first: Callable[[], None] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN:
                    continue  # nohup
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, previous in self._previous.items():
            signal.signal(signum, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """In this block the first signal raises Stopped where the program stands: nothing is half done there."""
        self.check()
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    @contextlib.contextmanager
    def calling(self, on_first: Callable[[], None]) -> Iterator[None]:
        """In this block the first signal calls `on_first`, which must only set flags."""
        self.check()
        self._on_first = on_first
        try:
            yield
        finally:
            self._on_first = None

    def check(self) -> None:
        """Raise Stopped if a signal came while nobody could act on it."""
        if self.signum is not None:
            raise Stopped(self.signum)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.signum is not None:
            if signum != self.signum or time.monotonic() - self._first_s > SAME_REQUEST_S:
                os._exit(128 + signum)
            return
        self.signum, self._first_s = signum, time.monotonic()
        if self._raises:
            raise Stopped(signum)
        if self._on_first is not None:
            self._on_first()
