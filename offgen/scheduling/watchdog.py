"""Turns "no progress" into an error that shows the state, so that a fault never spins."""

from __future__ import annotations

from collections.abc import Mapping

from offgen.errors import JobError


class Watchdog:
    """A row's prefill takes at most as many steps as a row has tokens; then some row gets a token."""

    def __init__(self, max_length: int) -> None:
        self._max_steps = 2 * max_length + 100
        self._num_steps = 0

    @property
    def is_worried(self) -> bool:
        return self._num_steps > 0

    def stepped(self, *, samples: bool, state: Mapping[str, object]) -> None:
        """A step was planned."""
        if samples:
            self._num_steps = 0
            return
        self._num_steps += 1
        if self._num_steps > self._max_steps:
            raise _no_progress(f"no token in {self._num_steps} steps", state)

    def stuck(self, state: Mapping[str, object]) -> None:
        """There is work, nothing is under way, and nothing can be planned."""
        raise _no_progress("there is work and nothing can be planned", state)


def _no_progress(what: str, state: Mapping[str, object]) -> JobError:
    listed = ", ".join(f"{name} {value}" for name, value in state.items())
    return JobError(
        f"the scheduler makes no progress: {what} ({listed})",
        hint="this is a fault of offgen; the rows that had finished are safe, and the same command resumes",
    )
