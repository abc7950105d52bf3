"""How long each step had the device to itself, though the next one is launched before its ids are read."""

from __future__ import annotations

from time import perf_counter


class StepClock:
    """Told of steps in the order they ran, each when its ids have come."""

    def __init__(self) -> None:
        self._ended_s: float | None = None  # when the last step was over; None: nobody waited for it

    def ended(self, started_s: float, *, was_awaited: bool) -> float | None:
        """Seconds since the later of its launch and the end of the step before; None where that is not known.

        was_awaited  False for a step that samples nothing: its ids are not read, so it ends unseen
        """
        before, self._ended_s = self._ended_s, perf_counter() if was_awaited else None
        return None if before is None or self._ended_s is None else self._ended_s - max(before, started_s)
