"""What the engine sees of a model: its shape, a forward pass over paged rows, logits. Knows no family."""

from __future__ import annotations

from typing import Protocol

import torch

from offgen.backends.base import AttentionInputs, KVCache
from offgen.models.config import ModelConfig


class Model(Protocol):
    """A loaded model. Holds weights and nothing of a step; all it needs to know of one arrives in `forward`."""

    config: ModelConfig
    weight_bytes: int  # as held, after the backend packed or quantized them

    def forward(self, token_ids: torch.Tensor, kv_caches: list[KVCache], inputs: AttentionInputs) -> torch.Tensor:
        """token_ids [T] int64 -> hidden states [T, E] after the last norm. Writes the step's keys and values."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [S, E] of the rows that sample -> [S, V] float32."""
        ...
