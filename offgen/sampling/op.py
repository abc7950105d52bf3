"""A device's own sampling op: filters, noise and choice in one launch, where a backend has one.

Its draws are distributed as chooser.py's, from the same keys, but they are not the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from offgen.backends.base import SampleOp
from offgen.sampling.params import SamplingParams

Upload = Callable[[np.ndarray[Any, Any]], torch.Tensor]

# what a row of padding is told: greedy, nothing filtered
PADS: dict[str, int] = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "keys": 0, "positions": 0}


@dataclass(frozen=True, slots=True)
class OpInputs:
    """What the op is told of all rows of a step; made once for a set of seats, all [S]. Nobody writes into them."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    keys: torch.Tensor
    positions: torch.Tensor  # how many tokens each row has already

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], keys: Sequence[int], num_outputs: Sequence[int], upload: Upload
    ) -> OpInputs:
        temperatures = [0.0 if one.is_greedy else one.temperature for one in params]
        return cls(
            temperature=upload(np.array(temperatures, dtype=np.float32)),
            top_k=upload(np.array([max(0, one.top_k) for one in params], dtype=np.int32)),
            top_p=upload(np.array([one.top_p for one in params], dtype=np.float32)),
            min_p=upload(np.array([one.min_p for one in params], dtype=np.float32)),
            keys=upload(np.array(keys, dtype=np.int64)),
            positions=upload(np.array(num_outputs, dtype=np.int64)),
        )

    @property
    def per_row(self) -> dict[str, torch.Tensor]:
        """By the op's names."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def run(self, op: SampleOp, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return op(logits, **self.per_row)

    def advanced(self) -> OpInputs:
        """Of the same rows' next step."""
        return replace(self, positions=self.positions + 1)
