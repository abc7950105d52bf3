"""Draws a token for each sampled row: temperature, top-k, top-p, min-p, then one random number a row.

A row with filters is settled among its likeliest columns where they can settle it; only the others pay for the whole
vocabulary. Temperature divides differences from the maximum, so nothing overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from offgen.sampling.blockwise import block_sums, padded_width, take_rows
from offgen.sampling.candidates import NUM_CANDIDATES, Limits, draw_candidate, likeliest, narrow
from offgen.sampling.draw import draw
from offgen.sampling.filters import keep_min_p, keep_top_k, keep_top_p
from offgen.sampling.params import SamplingParams
from offgen.sampling.rng import uniforms


@dataclass(frozen=True, slots=True)
class Draws:
    """How D rows are drawn: made once for a set of seats.

    wide      rows without a filter
    nucleus   rows with top-p and without top-k: their whole weight must be known
    filtered  rows with a filter, those of nucleus among them
    """

    params: Sequence[SamplingParams]
    temperatures: torch.Tensor  # [D, 1]
    keys: torch.Tensor  # [D] int64
    limits: Limits
    wide: list[int]
    nucleus: list[int]
    filtered: list[int]

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], keys: Sequence[int], *, vocab_size: int, device: torch.device
    ) -> Draws:
        top_k = [one.top_k if 0 < one.top_k < vocab_size else 0 for one in params]
        wide = [row for row, one in enumerate(params) if not top_k[row] and one.top_p >= 1.0 and one.min_p <= 0.0]
        limits = Limits(
            top_k=torch.tensor(top_k, dtype=torch.int64, device=device)[:, None],
            top_p=torch.tensor([one.top_p for one in params], dtype=torch.float64, device=device)[:, None],
            min_p=torch.tensor([one.min_p for one in params], dtype=torch.float32, device=device)[:, None],
            totals=torch.zeros(len(params), 1, dtype=torch.float64, device=device),
        )
        return cls(
            params=params,
            temperatures=torch.tensor([one.temperature for one in params], device=device)[:, None],
            keys=torch.tensor(keys, dtype=torch.int64, device=device),
            limits=limits,
            wide=wide,
            nucleus=[row for row, one in enumerate(params) if not top_k[row] and one.top_p < 1.0],
            filtered=sorted(set(range(len(params))) - set(wide)),
        )


class Chooser:
    """Keeps one table of weights: fresh memory would cost more than what is done in it."""

    def __init__(self) -> None:
        self._table = torch.empty(0, 0)

    def choose(self, logits: torch.Tensor, maxima: torch.Tensor, draws: Draws, positions: torch.Tensor) -> torch.Tensor:
        """logits [D, V], left as they are; maxima their block maxima; positions [D]. Returns ids [D].

        A row whose logits are not finite gets any id.
        """
        numbers = uniforms(draws.keys, positions)
        peaks = maxima.amax(-1, keepdim=True)
        chosen = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
        whole = draws.wide + draws.nucleus
        if whole:
            weights = self._weights(logits, peaks, draws, whole)
            if draws.nucleus:
                draws.limits.totals[draws.nucleus] = block_sums(weights[len(draws.wide) :]).cumsum(-1)[:, -1:]
            if draws.wide:
                chosen[draws.wide] = draw(weights[: len(draws.wide)], numbers[draws.wide])
        if draws.filtered:
            self._choose_filtered(logits, maxima, draws, numbers, chosen)
        return chosen

    def _choose_filtered(
        self, logits: torch.Tensor, maxima: torch.Tensor, draws: Draws, numbers: torch.Tensor, chosen: torch.Tensor
    ) -> None:
        rows = draws.filtered
        values, columns = likeliest(
            take_rows(logits, rows), take_rows(maxima, rows), min(NUM_CANDIDATES, logits.shape[1])
        )
        weights = ((values - values[:, :1]) / draws.temperatures[rows]).exp_()
        limits = draws.limits
        chosen_limits = Limits(limits.top_k[rows], limits.top_p[rows], limits.min_p[rows], limits.totals[rows])
        kept, is_settled = narrow(values, weights, chosen_limits, logits.shape[1])
        chosen[rows] = columns.gather(1, draw_candidate(kept, numbers[rows])).squeeze(1)
        rest = [row for row, settled in zip(rows, is_settled.tolist(), strict=True) if not settled]
        if rest:
            chosen[rest] = self._choose_whole(logits, maxima.amax(-1, keepdim=True), draws, rest, numbers[rest])

    def _choose_whole(
        self, logits: torch.Tensor, peaks: torch.Tensor, draws: Draws, rows: list[int], numbers: torch.Tensor
    ) -> torch.Tensor:
        """The rows that their likeliest columns did not settle: every filter over every column."""
        params = [draws.params[row] for row in rows]
        top_k = [row for row, one in enumerate(params) if 0 < one.top_k < logits.shape[1]]
        top_p = [row for row, one in enumerate(params) if one.top_p < 1.0]
        min_p = [row for row, one in enumerate(params) if one.min_p > 0.0]
        table = self._copy(logits, rows)
        if top_k:
            keep_top_k(table, top_k, [params[row].top_k for row in top_k])
        weights = table.sub_(peaks[rows]).div_(draws.temperatures[rows]).exp_()
        if top_p:
            keep_top_p(weights, top_p, [params[row].top_p for row in top_p])
        if min_p:
            keep_min_p(weights, min_p, [params[row].min_p for row in min_p])
        return draw(weights, numbers)

    def _weights(self, logits: torch.Tensor, peaks: torch.Tensor, draws: Draws, rows: list[int]) -> torch.Tensor:
        return self._copy(logits, rows).sub_(peaks[rows]).div_(draws.temperatures[rows]).exp_()

    def _copy(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """The rows, padded to whole blocks by -inf."""
        width = logits.shape[1]
        shape = (len(rows), padded_width(width))
        if self._table.shape[0] < shape[0] or self._table.shape[1] != shape[1]:
            self._table = torch.empty(shape, dtype=torch.float32, device=logits.device)
        table = self._table[: len(rows)]
        table[:, width:] = -torch.inf
        table[:, :width] = (
            logits
            if rows == list(range(logits.shape[0]))
            else logits.index_select(0, torch.tensor(rows, device=logits.device))
        )
        return table
