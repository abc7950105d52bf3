"""From logits to token ids, for all rows of a step at once, each by its own parameters.

In this order: penalties, bias and bad words, temperature, top-k, top-p, min-p, draw. Every operation works along a
row, in an order that the row alone decides, so its token does not depend on its neighbours. State belongs to a seat,
from `enter` to `leave`. Knows no model and no text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from offgen.backends.base import SampleOp
from offgen.records import TokenLogprob
from offgen.sampling import masks
from offgen.sampling.blockwise import argmax, block_maxima, put_rows, take_rows
from offgen.sampling.chooser import Chooser, Draws
from offgen.sampling.history import History
from offgen.sampling.logprobs import RawLogprobs, raw_logprobs
from offgen.sampling.op import OpInputs, Upload
from offgen.sampling.params import SamplingParams
from offgen.sampling.penalties import Penalties
from offgen.sampling.plan import Plan, SeatState, make_plan
from offgen.sampling.rng import stream_key


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's result, still on the device; reading `logprobs` waits for it.

    token_ids   [S]   int64; 0 where non_finite
    non_finite  [S]   bool: the row's logits held NaN or +inf, or nothing but -inf: it cannot go on
    """

    token_ids: torch.Tensor
    non_finite: torch.Tensor
    raw: RawLogprobs | None = None
    raw_rows: Sequence[int] = ()
    raw_num_top: Sequence[int] = ()

    @property
    def logprobs(self) -> list[TokenLogprob | None] | None:
        """One place per row, None for rows that did not ask; None if no row did."""
        if self.raw is None:
            return None
        result: list[TokenLogprob | None] = [None] * self.token_ids.shape[0]
        for row, one in zip(self.raw_rows, self.raw.read(self.raw_num_top), strict=True):
            result[row] = one
        return result


class Sampler:
    """Owns the sampling state of every seat. All rows of a call must sit on seats that entered.

    op      the device's own op for all that comes after the edits of logits, if it has one
    upload  brings what the op is told to the device, without waiting for it
    """

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        *,
        op: SampleOp | None = None,
        upload: Upload | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._op = op
        self._upload = upload or partial(torch.as_tensor, device=device)
        self._states: list[SeatState | None] = [None] * max_num_seqs
        self._history = History(device)
        self._penalties = Penalties(vocab_size, self._history, device)
        self._chooser = Chooser()
        self._plan: Plan | None = None
        self._plan_steps = 0

    @torch.inference_mode()
    def enter(
        self,
        seat: int,
        *,
        row_id: int,
        sample_index: int,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        eos_ids: Collection[int],
    ) -> None:
        """Seat one sample. output_ids: what it has already (after a preemption or a resume)."""
        self.leave(seat)
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}
        state = SeatState(
            params=params,
            key=stream_key(params.seed, row_id, sample_index),
            end_ids=tuple(sorted(one for one in ends if 0 <= one < self._vocab_size)),
            num_outputs=len(output_ids),
        )
        self._states[seat] = state
        if state.needs_history:
            self._history.enter(seat, prompt_ids, output_ids)
            self._penalties.enter(seat, params, output_ids)

    def leave(self, seat: int) -> None:
        """Forget the seat's sample, if there is one."""
        self._states[seat] = None
        self._history.leave(seat)
        self._penalties.leave(seat)
        self._plan = None

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, seats: Sequence[int]) -> Sampled:
        """Sample one token for each row, and count it to its seat.

        logits  [S, V]   float32, left as they are
        seats   [S]      the rows' seats, each once
        """
        plan = self._plan_for(seats)
        if self._op is not None:
            token_ids, non_finite = self._choose_by_op(self._op, logits, plan)
        else:
            token_ids, non_finite = self._choose(logits, plan)
        token_ids = token_ids.masked_fill(non_finite, 0)
        self._advance(plan, token_ids)
        if not plan.logprobs:
            return Sampled(token_ids, non_finite)
        wanted = [plan.states[row].params.logprobs or 0 for row in plan.logprobs]
        raw = raw_logprobs(take_rows(logits, plan.logprobs), take_rows(token_ids, plan.logprobs), max(wanted))
        return Sampled(token_ids, non_finite, raw, plan.logprobs, wanted)

    @torch.inference_mode()
    def plain_inputs(self, seats: Sequence[int]) -> OpInputs | None:
        """What the op is told of these rows, if it alone makes their next tokens; `take` then counts them.

        None if there is no op, if some row's logits are edited first, or if they are read for log-probabilities.
        """
        if self._op is None:
            return None
        plan = self._plan_for(seats)
        return None if plan.edited or plan.logprobs else self._op_inputs(plan)

    @torch.inference_mode()
    def take(self, seats: Sequence[int], token_ids: torch.Tensor, non_finite: torch.Tensor) -> Sampled:
        """Count what the op has made of `plain_inputs(seats)`."""
        self._advance(self._plan_for(seats), token_ids)
        return Sampled(token_ids, non_finite)

    @torch.inference_mode()
    def prompt_logprobs(self, logits: torch.Tensor, next_ids: torch.Tensor, k: int) -> list[TokenLogprob]:
        """logits [T, V] after each prompt token, next_ids [T] the prompt token that follows it."""
        return raw_logprobs(logits, next_ids, k).read([k] * logits.shape[0])

    def _plan_for(self, seats: Sequence[int]) -> Plan:
        if self._plan is None or self._plan_steps >= self._plan.num_steps or self._plan.seats != tuple(seats):
            states = [state for state in (self._states[seat] for seat in seats) if state is not None]
            assert len(states) == len(seats), "a row without a seat"
            self._plan, self._plan_steps = make_plan(seats, states), 0
        return self._plan

    def _choose_by_op(self, op: SampleOp, logits: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        if plan.edited:
            logits = self._edited(logits, plan)[0]
        return self._op_inputs(plan).run(op, logits)

    def _op_inputs(self, plan: Plan) -> OpInputs:
        if plan.op_inputs is None:
            plan.op_inputs = OpInputs.of(
                [state.params for state in plan.states],
                [state.key for state in plan.states],
                [state.num_outputs for state in plan.states],
                self._upload,
            )
        return plan.op_inputs

    def _choose(self, logits: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        maxima = block_maxima(logits)
        non_finite = ~maxima.amax(-1).isfinite()  # NaN and +inf win every maximum; -inf only when alone
        if plan.edited:
            logits, table = self._edited(logits, plan)
            maxima = maxima.clone()
            put_rows(maxima, plan.edited, block_maxima(table))
            non_finite |= maxima.amax(-1) == -torch.inf  # every column is banned
        if len(plan.drawn) == logits.shape[0]:
            return self._chooser.choose(
                logits, maxima, self._draws(plan), self._positions(plan, plan.drawn)
            ), non_finite
        chosen = argmax(logits, maxima)
        if plan.drawn:
            part, tops = take_rows(logits, plan.drawn), take_rows(maxima, plan.drawn)
            chosen[plan.drawn] = self._chooser.choose(part, tops, self._draws(plan), self._positions(plan, plan.drawn))
        return chosen, non_finite

    def _draws(self, plan: Plan) -> Draws:
        if plan.draws is None:
            plan.draws = Draws.of(
                [plan.states[row].params for row in plan.drawn],
                [plan.states[row].key for row in plan.drawn],
                vocab_size=self._vocab_size,
                device=self._device,
            )
        return plan.draws

    def _edited(self, logits: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """All logits after penalties, bias and bad words, and the rows of plan.edited alone; the given ones stay."""
        whole = logits.clone()
        table = take_rows(whole, plan.edited)
        if plan.penalized.rows:
            self._penalties.apply(table, plan.penalized.rows, plan.penalized.seats, plan.penalized.params)
        if plan.biased.rows:
            masks.add_bias(table, plan.biased.rows, plan.biased.params)
        if plan.worded.rows:
            masks.mask_bad_words(table, plan.worded.rows, plan.worded.seats, plan.worded.params, self._history)
        if plan.held_back.rows:
            states = (self._states[seat] for seat in plan.held_back.seats)
            masks.mask_ids(table, plan.held_back.rows, [state.end_ids for state in states if state is not None])
        put_rows(whole, plan.edited, table)
        return whole, table

    def _positions(self, plan: Plan, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor([plan.states[row].num_outputs for row in rows], dtype=torch.int64, device=self._device)

    def _advance(self, plan: Plan, token_ids: torch.Tensor) -> None:
        self._plan_steps += 1
        for state in plan.states:
            state.num_outputs += 1
        if plan.op_inputs is not None:
            plan.op_inputs = plan.op_inputs.advanced()
        if plan.remembered:
            seats = [plan.seats[row] for row in plan.remembered]
            ids = token_ids[torch.tensor(plan.remembered, device=token_ids.device)]
            self._history.append(seats, ids)
            self._penalties.append(seats, ids)
