"""What a step's sampling must do, row by row: made once for a set of seats, and kept while nobody enters or leaves.

Knows parameters; knows no logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offgen.sampling.chooser import Draws
from offgen.sampling.masks import has_long_bad_words
from offgen.sampling.op import OpInputs
from offgen.sampling.params import SamplingParams
from offgen.sampling.penalties import has_penalty


@dataclass(slots=True)
class SeatState:
    """One seat's sample. `num_outputs` is written by the sampler alone."""

    params: SamplingParams
    key: int  # its stream of random numbers
    end_ids: tuple[int, ...]  # EOS and stop ids: masked until min_tokens
    num_outputs: int
    is_greedy: bool = field(init=False)
    has_penalty: bool = field(init=False)
    needs_history: bool = field(init=False)
    is_edited: bool = field(init=False)  # its logits are changed in every step

    def __post_init__(self) -> None:
        params = self.params
        self.is_greedy = params.is_greedy
        self.has_penalty = has_penalty(params)
        self.needs_history = self.has_penalty or has_long_bad_words(params)
        self.is_edited = self.has_penalty or bool(params.logit_bias) or bool(params.bad_words_token_ids)

    @property
    def num_held_back(self) -> int:
        """Steps for which it may not end yet."""
        return max(0, self.params.min_tokens - self.num_outputs) if self.end_ids else 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One operation of a step: the rows it works on and their seats."""

    rows: Sequence[int]
    seats: Sequence[int]
    params: Sequence[SamplingParams]


@dataclass(slots=True)
class Plan:
    """The rows of a step, sorted by what they need.

    edited     rows of the batch whose logits are changed: copied into a table of their own, which the rules refer to
    drawn      rows of the batch that are sampled
    draws      how: its rows are those of drawn (made by the sampler, if torch's operations draw)
    op_inputs  what a device's own op is told of all rows' next step (made by the sampler, if there is one)
    logprobs   rows of the batch that want log-probabilities
    num_steps  how often the plan may be used before a row reaches its min_tokens
    """

    seats: tuple[int, ...]
    states: list[SeatState]
    edited: list[int]
    drawn: list[int]
    penalized: Rule
    biased: Rule
    worded: Rule
    held_back: Rule
    logprobs: list[int]
    remembered: list[int]  # rows of the batch whose sampled id goes into the history
    num_steps: int
    draws: Draws | None = None
    op_inputs: OpInputs | None = None


def make_plan(seats: Sequence[int], states: Sequence[SeatState]) -> Plan:
    edited = [row for row, one in enumerate(states) if one.is_edited or one.num_held_back > 0]
    table = [(seats[row], states[row]) for row in edited]
    drawn = [row for row, one in enumerate(states) if not one.is_greedy]
    waits = [one.num_held_back for one in states if one.num_held_back > 0]
    return Plan(
        seats=tuple(seats),
        states=list(states),
        edited=edited,
        drawn=drawn,
        penalized=_rule(table, [one.has_penalty for _, one in table]),
        biased=_rule(table, [bool(one.params.logit_bias) for _, one in table]),
        worded=_rule(table, [bool(one.params.bad_words_token_ids) for _, one in table]),
        held_back=_rule(table, [one.num_held_back > 0 for _, one in table]),
        logprobs=[row for row, one in enumerate(states) if one.params.logprobs is not None],
        remembered=[row for row, one in enumerate(states) if one.needs_history],
        num_steps=min(waits, default=1 << 62),
    )


def _rule(table: Sequence[tuple[int, SeatState]], applies: Sequence[bool]) -> Rule:
    rows = [row for row, one in enumerate(applies) if one]
    return Rule(rows, [table[row][0] for row in rows], [table[row][1].params for row in rows])
