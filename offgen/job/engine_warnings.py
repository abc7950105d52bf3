"""Says what a running engine warns of, each warning once. A listener of the heartbeat."""

from __future__ import annotations

from collections.abc import Callable

from offgen.stats.engine import EngineStats
from offgen.stats.progress import Snapshot


class EngineWarnings:
    def __init__(self, stats: EngineStats, warn: Callable[[str], None]) -> None:
        self._stats, self._warn = stats, warn
        self._num_said = 0

    def show(self, _: Snapshot) -> None:
        for text in self._stats.warnings[self._num_said :]:
            self._num_said += 1
            self._warn(text)
