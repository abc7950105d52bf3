"""Seconds of steps that overlap on the host."""

from __future__ import annotations

from offgen.engine import step_clock
from offgen.engine.step_clock import StepClock


def test_a_step_launched_ahead_counts_from_the_end_of_the_one_before(monkeypatch):
    ends = iter([10.0, 13.0, 20.0, 30.0, 31.0])
    monkeypatch.setattr(step_clock, "perf_counter", lambda: next(ends))
    clock = StepClock()
    assert clock.ended(1.0, was_awaited=True) is None  # nothing is known of what ran before
    assert clock.ended(9.0, was_awaited=True) == 3.0  # launched before 10
    assert clock.ended(16.0, was_awaited=True) == 4.0  # the device had nothing from 13 to 16
    assert clock.ended(21.0, was_awaited=False) is None
    assert clock.ended(22.0, was_awaited=True) is None  # may hold the unseen step too
    assert clock.ended(23.0, was_awaited=True) == 1.0
