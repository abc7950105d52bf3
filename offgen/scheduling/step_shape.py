"""Whether prompts are computed in the steps of the decode rows, or in steps of their own for which those pause.

Mixed steps read the weights once for both; separate ones keep a device's fast path for decode rows (a recorded graph)
and fill it with prompts alone. Which is faster depends on model, lengths and device: `measured` tries both in turn
while prompts come, and keeps the faster. Knows counts and seconds; knows no request.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from offgen.scheduling.config import SchedulerConfig

MAX_PREFILLS_IN_A_ROW = 4  # then the decode rows have a step: rows of one token could pass by them for ever
FREE_SHARE = 16  # one in so many seats is free before decode rows pause, unless prompts fill a step before
STEPS_A_TURN = 4  # steps with prompts until a trial tries the other shape
MIXED, ALONE = 12, 6  # measured steps that it takes to decide: mixed ones and decode rows alone; prompts alone
MARGIN = 1.03  # what separate steps must win by: meanwhile some seats are empty


class StepShape:
    """`is_mixed` is how steps are planned now. Told of each step twice: when it is planned, and what it took."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.is_mixed = config.step_shape != "separate"
        self.is_decided = config.step_shape != "measured"
        self._num_seats, self._budget = config.num_seats, config.max_num_batched_tokens
        self._num_prefills = 0  # steps of prompts alone since the last one of decode rows
        self._num_tried = 0
        self._mixed: deque[tuple[int, int, float]] = deque(maxlen=MIXED)  # prompt tokens, decode rows, seconds
        self._decode: deque[tuple[int, float]] = deque(maxlen=MIXED)  # rows, seconds
        self._prefill: deque[float] = deque(maxlen=ALONE)  # seconds a token

    @property
    def name(self) -> str:
        """What is kept; `undecided` while both are tried."""
        if not self.is_decided:
            return "undecided"
        return "mixed" if self.is_mixed else "separate"

    def pauses_decodes(self, *, is_under_way: bool, num_free: int, num_waiting: int, waiting_tokens: int) -> bool:
        """Do prompts have the next step to themselves, though rows decode?

        is_under_way     some prompt is computed in part
        num_free         seats
        num_waiting      rows, with `waiting_tokens` in their prompts together
        """
        if self.is_mixed or self._num_prefills >= MAX_PREFILLS_IN_A_ROW:
            return False
        if is_under_way:
            return True
        if not (num_free and num_waiting):
            return False
        num_starting = min(num_free, num_waiting)
        fills_step = num_starting * waiting_tokens >= self._budget * num_waiting
        return fills_step or num_starting == num_waiting or num_free * FREE_SHARE >= self._num_seats

    def planned(self, *, has_prompts: bool, has_decodes: bool) -> None:
        """A step is on its way."""
        self._num_prefills = 0 if has_decodes or not has_prompts else self._num_prefills + 1
        if has_prompts and not self.is_decided:
            self._num_tried += 1
            if self._num_tried % STEPS_A_TURN == 0:
                self.is_mixed = not self.is_mixed

    def took(self, num_prefill_tokens: int, num_decode_rows: int, seconds: float) -> None:
        """So long took a step with prompt tokens, decode rows or both."""
        if self.is_decided:
            return
        if num_prefill_tokens and num_decode_rows:
            self._mixed.append((num_prefill_tokens, num_decode_rows, seconds))
        elif num_prefill_tokens:
            self._prefill.append(seconds / num_prefill_tokens)
        elif num_decode_rows:
            self._decode.append((num_decode_rows, seconds))
        if len(self._mixed) == len(self._decode) == MIXED and len(self._prefill) == ALONE:
            self.is_decided = True
            self.is_mixed = self._gain() < MARGIN

    def _gain(self) -> float:
        """What mixed steps took, by what their work takes apart. Medians: a first step may compile or record."""
        token_s = max(1e-12, median(self._prefill))
        return median(seconds / (tokens * token_s + self._decode_s(rows)) for tokens, rows, seconds in self._mixed)

    def _decode_s(self, rows: int) -> float:
        """A step of so many decode rows: as those measured that come nearest."""
        return median(seconds for _, seconds in sorted(self._decode, key=lambda one: abs(one[0] - rows))[:5])
