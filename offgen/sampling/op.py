"""A device's own sampling op: filters, noise and choice in one launch, where a backend has one.

Its draws are distributed as chooser.py's, from the same keys, but they are not the same draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from offgen.backends.base import SampleOp
from offgen.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class OpInputs:
    """What the op is told of all rows of a step; made once for a set of seats."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], keys: Sequence[int], device: torch.device) -> OpInputs:
        temperatures = [0.0 if one.is_greedy else one.temperature for one in params]
        return cls(
            temperature=torch.tensor(temperatures, dtype=torch.float32, device=device),
            top_k=torch.tensor([max(0, one.top_k) for one in params], dtype=torch.int32, device=device),
            top_p=torch.tensor([one.top_p for one in params], dtype=torch.float32, device=device),
            min_p=torch.tensor([one.min_p for one in params], dtype=torch.float32, device=device),
            keys=torch.tensor(keys, dtype=torch.int64, device=device),
        )

    def run(self, op: SampleOp, logits: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return op(
            logits,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            keys=self.keys,
            positions=positions,
        )
