"""A step of decode rows only as one call, from their last ids to their next ones: what a device records whole.

Knows that a forward pass, logits and sampling follow each other; knows no seats, no queue, and graphs only as what
`Backend.capture` makes of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from offgen.backends.base import AttentionInputs, Backend, KVCache, SampleOp
from offgen.engine.inputs import StepInputs
from offgen.models.base import Model
from offgen.sampling.op import PADS
from offgen.sampling.sampler import Sampled, Sampler

Whole = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class DecodeStep:
    """Runs the steps that can be one call: every row decodes, and the device's own op alone makes its token."""

    def __init__(self, model: Model, backend: Backend, sampler: Sampler, *, can_capture: bool) -> None:
        op = backend.sample_op
        self._sampler = sampler
        self._whole = backend.capture(whole_step(model, op), pads=PADS) if op is not None and can_capture else None

    def run(self, inputs: StepInputs, kv_caches: list[KVCache]) -> Sampled | None:
        """What the step samples; None, and nothing done, if it is not such a step."""
        num_decodes = inputs.attention.num_decodes
        if self._whole is None or num_decodes != inputs.token_ids.shape[0]:
            return None
        told = self._sampler.plain_inputs(inputs.sample_seats)
        if told is None:
            return None
        token_ids, non_finite = self._whole(inputs.token_ids, kv_caches, inputs.attention, **told.per_row)
        return self._sampler.take(inputs.sample_seats, token_ids, non_finite)


def whole_step(model: Model, op: SampleOp) -> Whole:
    """(token_ids [S], kv_caches, inputs, **what the op is told) -> (next ids [S], non-finite [S]) of decode rows."""

    def step(
        token_ids: torch.Tensor, kv_caches: list[KVCache], inputs: AttentionInputs, **told: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return op(model.compute_logits(model.forward(token_ids, kv_caches, inputs)), **told)

    return step
