"""A thread that looks at a running job twice a second, for the screen, the metrics and the timeline."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from offgen.stats.progress import Progress, Snapshot

TICK_S = 0.5

Listener = Callable[[Snapshot], None]


class Heartbeat:
    """Calls each listener with a snapshot every tick of a `with` block, and once more at its end.

    A listener that fails is not called again: a broken screen or a full disk for metrics must not end the job.
    """

    def __init__(self, progress: Progress, listeners: Sequence[Listener], *, on_failure: Callable[[str], None]) -> None:
        self._progress = progress
        self._listeners = list(listeners)
        self._on_failure = on_failure
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="offgen-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._tell()

    def _beat(self) -> None:
        while not self._ended.wait(TICK_S):
            self._tell()

    def _tell(self) -> None:
        snapshot = self._progress.snapshot(time.monotonic())
        for listener in list(self._listeners):
            try:
                listener(snapshot)
            except Exception as problem:
                self._listeners.remove(listener)
                with contextlib.suppress(Exception):
                    self._on_failure(f"{listener_name(listener)} is switched off: {problem}")


def listener_name(listener: Listener) -> str:
    owner = getattr(listener, "__self__", listener)
    return type(owner).__name__
