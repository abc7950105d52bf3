"""A backend with a card's memory, for tests without one: it measures, it refuses, and a step may run out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from offgen.backends import Backend


class FakeCard:
    """Passes everything on to a CPU backend; memory is as it is told.

    total, used     bytes of the card, and what the model takes of it
    step_bytes      bytes a step takes for each of its tokens
    most_blocks     the pool beyond which allocation fails
    failing         forward passes, counted from 1, that run out of memory; or those of more tokens than max_tokens
    """

    steps_ahead = 0

    def __init__(
        self,
        backend: Backend,
        *,
        total: int = 1 << 30,
        used: int = 0,
        step_bytes: int = 1000,
        most_blocks: int | None = None,
        failing: Collection[int] = (),
        max_tokens: int | None = None,
        steps_ahead: int = 0,
    ) -> None:
        self._backend = backend
        self.total, self.used, self.step_bytes, self.most_blocks = total, used, step_bytes, most_blocks
        self.failing, self.max_tokens, self.steps_ahead = failing, max_tokens, steps_ahead
        self.num_steps = self.num_failures = self.num_releases = self.largest_step = 0
        self.is_measuring = False
        self.measured: list[int] = []  # tokens of the steps that were run to measure them

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Where a forward pass begins."""
        num_tokens = token_ids.shape[0]
        self.num_steps += not self.is_measuring
        is_too_large = self.max_tokens is not None and num_tokens > self.max_tokens
        if is_too_large or (not self.is_measuring and self.num_steps in self.failing):
            self.num_failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.is_measuring:
            self.measured.append(num_tokens)
        self.largest_step = max(self.largest_step, num_tokens)
        return self._backend.embedding(token_ids, weight)

    def peak_bytes(self, run: Callable[[], Any]) -> int | None:
        self.is_measuring = True
        try:
            run()
        finally:
            self.is_measuring = False
        return self.step_bytes * self.measured[-1]

    def graph_bytes(self, max_num_seqs: int) -> int:
        return 100 * max_num_seqs

    def kv_budget_bytes(self, utilization: float, step_bytes: int | None = None) -> int:
        assert step_bytes is not None, "this card can be measured"
        return int(self.total * utilization) - self.used - step_bytes

    def allocate_kv(self, num_layers: int, num_blocks: int, *shape: Any) -> Any:
        if self.most_blocks is not None and num_blocks > self.most_blocks:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._backend.allocate_kv(num_layers, num_blocks, *shape)

    def release_memory(self) -> None:
        self.num_releases += 1

    def capture(self, forward: Callable[..., Any], *, pads: Any = None) -> Callable[..., Any]:
        return forward  # `embedding` counts passes, so each must come by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
