"""The same numbers, and the same choices, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from offgen.sampling.rng import stream_key, uniforms
from offgen.sampling.sampler import Sampler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def test_random_numbers_have_the_same_bits() -> None:
    keys = torch.tensor([stream_key(seed, row, 1) for seed in (0, -5, 2**62) for row in range(300)])
    positions = torch.arange(len(keys))
    assert torch.equal(uniforms(keys.cuda(), positions.cuda()).cpu(), uniforms(keys, positions))


def test_rows_are_sampled_as_on_a_cpu(make: Callable[..., Any]) -> None:
    """All but those that sit within rounding of a boundary: exp differs in its last bit."""
    num_columns, num = 5000, 96
    logits = torch.randn(num, num_columns, generator=torch.Generator().manual_seed(0)) * 3
    samples = [
        make(
            row_id=row,
            prompt_ids=[row, 3],
            temperature=[0.0, 0.7, 1.3][row % 3],
            top_k=[0, 40, 300][row // 3 % 3],
            top_p=[1.0, 0.9][row % 2],
            min_p=[0.0, 0.02][row // 5 % 2],
            repetition_penalty=[1.0, 1.2][row // 7 % 2],
            frequency_penalty=[0.0, 0.5][row // 11 % 2],
            bad_words_token_ids=((5,), (6, 7)),
            logit_bias=((9, 2.0),),
            min_tokens=2,
            stop_token_ids=(4,),
            logprobs=2,
        )
        for row in range(num)
    ]
    tokens = {}
    for device in ("cpu", "cuda"):
        sampler = Sampler(num, num_columns, torch.device(device))
        for seat, sample in enumerate(samples):
            sample.enter(sampler, seat)
        steps = [sampler.sample(logits.to(device), range(num)) for _ in range(4)]
        assert all(step.logprobs is not None and not step.non_finite.any() for step in steps)
        tokens[device] = torch.stack([step.token_ids.cpu() for step in steps])
    assert (tokens["cpu"] == tokens["cuda"]).double().mean() > 0.98
