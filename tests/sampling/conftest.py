"""Rows to sample, and a sampler to put them in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from offgen.sampling.params import SamplingParams
from offgen.sampling.sampler import Sampled, Sampler

torch.set_num_threads(1)
CPU = torch.device("cpu")


@dataclass
class Sample:
    """One row as it enters the sampler."""

    params: SamplingParams
    row_id: int = 0
    sample_index: int = 0
    prompt_ids: Sequence[int] = (1,)
    output_ids: list[int] = field(default_factory=list)
    eos_ids: frozenset[int] = frozenset()

    def enter(self, sampler: Sampler, seat: int) -> None:
        sampler.enter(
            seat,
            row_id=self.row_id,
            sample_index=self.sample_index,
            params=self.params,
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids,
            eos_ids=self.eos_ids,
        )


def sample_once(logits: torch.Tensor, samples: Sequence[Sample]) -> Sampled:
    """One step of a fresh sampler, samples on seats in order."""
    sampler = Sampler(len(samples), logits.shape[1], CPU)
    for seat, sample in enumerate(samples):
        sample.enter(sampler, seat)
    return sampler.sample(logits, range(len(samples)))


@pytest.fixture
def once() -> Callable[[torch.Tensor, Sequence[Sample]], Sampled]:
    return sample_once


@pytest.fixture
def make() -> Callable[..., Sample]:
    """make(temperature=0.7, ..., row_id=3): parameters of sampling and of the row, mixed."""

    def build(**values: Any) -> Sample:
        own = {name: values.pop(name) for name in list(values) if name in Sample.__dataclass_fields__}
        return Sample(SamplingParams(**values), **own)

    return build
