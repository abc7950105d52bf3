"""Repetition, presence and frequency penalties: repetition sees prompt and output, the other two the output only.

Only the columns of ids that a row has seen are read and written, so the cost is its length, not the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offgen.sampling.history import History
from offgen.sampling.params import SamplingParams


def has_penalty(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


class Penalties:
    """Each seat's counts of its own output ids; a row of V counts for those seats only that are penalized by count."""

    def __init__(self, vocab_size: int, history: History, device: torch.device) -> None:
        self._history = history
        self._device = device
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._lines: dict[int, int] = {}
        self._free: list[int] = []

    def enter(self, seat: int, params: SamplingParams, output_ids: Sequence[int]) -> None:
        if params.presence_penalty == 0.0 and params.frequency_penalty == 0.0:
            return
        if not self._free:
            self._free.append(len(self._lines))
        line = self._lines[seat] = self._free.pop()
        if line >= self._counts.shape[0]:
            grown = self._counts.new_zeros(max(4, 2 * line), self._counts.shape[1])
            grown[: self._counts.shape[0]] = self._counts
            self._counts = grown
        self._counts[line] = 0
        if output_ids:
            ids = torch.tensor(list(output_ids), dtype=torch.int64).to(self._device)
            self._counts[line] += torch.bincount(ids, minlength=self._counts.shape[1]).to(torch.int32)

    def leave(self, seat: int) -> None:
        if seat in self._lines:
            self._free.append(self._lines.pop(seat))

    def append(self, seats: Sequence[int], token_ids: torch.Tensor) -> None:
        """Count one sampled id per seat; seats without counts are passed over."""
        counted = [place for place, seat in enumerate(seats) if seat in self._lines]
        if counted:
            lines = torch.tensor([self._lines[seats[place]] for place in counted], device=self._device)
            self._counts[lines, token_ids[torch.tensor(counted, device=self._device)]] += 1

    def apply(
        self, logits: torch.Tensor, rows: Sequence[int], seats: Sequence[int], params: Sequence[SamplingParams]
    ) -> None:
        """Penalize `rows` of logits [R, V] in place; seats and params belong to the rows."""
        index = torch.tensor(rows, device=logits.device)[:, None]
        ids = self._history.ids(seats)
        values = logits[index, ids]
        repetition = _column([one.repetition_penalty for one in params], logits)
        values = torch.where(values > 0, values / repetition, values * repetition)
        counted = [place for place, seat in enumerate(seats) if seat in self._lines]
        if counted:
            place = torch.tensor(counted, device=logits.device)
            lines = torch.tensor([self._lines[seats[one]] for one in counted], device=logits.device)
            counts = self._counts[lines[:, None], ids[place]]
            frequency = _column([params[one].frequency_penalty for one in counted], logits)
            presence = _column([params[one].presence_penalty for one in counted], logits)
            values[place] -= counts * frequency + (counts > 0) * presence
        logits[index, ids] = values  # an id that occurs twice is written twice, with the same value


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
