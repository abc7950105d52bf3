"""What each row that needs it has seen: its prompt's distinct ids, then its output ids, on the device.

Knows no rule: penalties and bad words read it. Lengths are known on the host, so nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class History:
    """One line of ids per seat that entered. Lines are reused after `leave`; storage grows as needed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ids = torch.zeros(0, 0, dtype=torch.int64, device=device)
        self._lines: dict[int, int] = {}  # seat -> line
        self._free: list[int] = []
        self._num_prompt_ids: dict[int, int] = {}
        self._num_ids: dict[int, int] = {}

    def __contains__(self, seat: int) -> bool:
        return seat in self._lines

    def enter(self, seat: int, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(prompt_ids))
        ids = [*distinct, *output_ids]
        if not self._free:
            self._free.append(len(self._lines))
        self._reserve(self._free[-1] + 1, len(ids) + 1)  # may run out of memory: nothing has changed then
        line = self._free.pop()
        self._lines[seat], self._num_prompt_ids[seat], self._num_ids[seat] = line, len(distinct), len(ids)
        self._ids[line, : len(ids)] = torch.tensor(ids, dtype=torch.int64).to(self._device)

    def leave(self, seat: int) -> None:
        if seat in self._lines:
            self._free.append(self._lines.pop(seat))
            del self._num_prompt_ids[seat], self._num_ids[seat]

    def append(self, seats: Sequence[int], token_ids: torch.Tensor) -> None:
        """One sampled id per seat. token_ids [len(seats)] int64, on the device."""
        self._reserve(0, max(self._num_ids[seat] for seat in seats) + 1)
        lines = torch.tensor([self._lines[seat] for seat in seats], device=self._device)
        places = torch.tensor([self._num_ids[seat] for seat in seats], device=self._device)
        self._ids[lines, places] = token_ids
        for seat in seats:
            self._num_ids[seat] += 1

    def ids(self, seats: Sequence[int]) -> torch.Tensor:
        """[len(seats), longest]: all ids of each seat; past its end, its first id again (0 if it has none)."""
        lines = torch.tensor([self._lines[seat] for seat in seats], device=self._device)
        lengths = torch.tensor([self._num_ids[seat] for seat in seats], device=self._device)
        width = max(1, *(self._num_ids[seat] for seat in seats))
        ids = self._ids[lines, :width]
        is_past = torch.arange(width, device=self._device) >= lengths[:, None]
        return torch.where(is_past, ids[:, :1] * (lengths[:, None] > 0), ids)

    def tails(self, seats: Sequence[int], length: int) -> torch.Tensor:
        """[len(seats), length]: the last output ids of each seat, -1 where it has not as many."""
        lines = torch.tensor([self._lines[seat] for seat in seats], device=self._device)
        ends = torch.tensor([self._num_ids[seat] for seat in seats], device=self._device)[:, None]
        firsts = torch.tensor([self._num_prompt_ids[seat] for seat in seats], device=self._device)[:, None]
        places = ends - length + torch.arange(length, device=self._device)
        ids = self._ids[lines[:, None], places.clamp(min=0)]
        return torch.where(places < firsts, -1, ids)

    def _reserve(self, num_lines: int, width: int) -> None:
        have_lines, have_width = self._ids.shape
        if num_lines <= have_lines and width <= have_width:
            return
        num_lines = have_lines if num_lines <= have_lines else max(num_lines, 2 * have_lines)
        width = have_width if width <= have_width else max(width + 256, have_width * 3 // 2)
        grown = torch.zeros(num_lines, width, dtype=torch.int64, device=self._device)
        grown[:have_lines, :have_width] = self._ids
        self._ids = grown
