"""How large a step may be now: what was asked for, until the device could not take it. Knows no pool and no row."""

from __future__ import annotations

from dataclasses import dataclass

from offgen.scheduling.config import SchedulerConfig


@dataclass(slots=True)
class StepLimits:
    """Written by `halve`, and only ever made smaller.

    num_tokens   the token budget
    num_rows     rows that run at once: each takes a token of every step
    is_cut       prompts may be computed in chunks
    """

    num_tokens: int
    num_rows: int
    is_cut: bool

    @classmethod
    def of(cls, config: SchedulerConfig) -> StepLimits:
        return cls(config.max_num_batched_tokens, config.num_seats, config.chunked_prefill)

    def halve(self) -> bool:
        """A step was too large. False, and nothing is changed, if none can be smaller.

        Whatever the size of that step: what comes next are its rows' prompts, which fill the budget, so that the size
        that fits is found at once, and a small step's bad luck does not slow down a whole job.
        """
        if self.num_tokens == 1:
            return False
        self.num_tokens //= 2
        self.num_rows = min(self.num_rows, self.num_tokens)
        self.is_cut = True  # a prompt that did not fit whole
        return True

    def admits(self, length: int, budget: int, *, is_first: bool) -> bool:
        """May a prompt of this length start on what is left of the budget?"""
        if self.is_cut:
            return budget > 0
        return length <= budget or is_first  # a prompt longer than the budget is the only one of its step

    def chunk(self, length: int, budget: int) -> int:
        """How much of it runs in this step."""
        return min(length, budget) if self.is_cut else length
