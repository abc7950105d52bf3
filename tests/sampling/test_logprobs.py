"""Log-probabilities are the raw model's, whatever sampling did to the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from offgen.sampling.sampler import Sampler

CPU = torch.device("cpu")


def test_logprobs_and_ranks_are_those_of_log_softmax(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = torch.randn(40, 333, generator=torch.Generator().manual_seed(0)) * 5
    samples = [
        make(row_id=row, temperature=2.0, top_k=5, repetition_penalty=1.5, logprobs=row % 4) for row in range(40)
    ]
    sampled = once(logits, samples)
    expected = logits.double().log_softmax(-1)
    for row, one in enumerate(sampled.logprobs):
        token = sampled.token_ids[row].item()
        assert one.token_id == token
        assert one.logprob == pytest.approx(expected[row, token].item(), abs=2e-6)
        assert one.rank == (expected[row] > expected[row, token]).sum().item() + 1
        values, ids = expected[row].topk(row % 4)
        assert [token_id for token_id, _ in one.top] == ids.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=2e-6)


def test_rows_that_did_not_ask_have_none(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    assert once(logits, [make(), make(), make()]).logprobs is None
    logprobs = once(logits, [make(), make(logprobs=0), make(logprobs=2)]).logprobs
    assert logprobs[0] is None
    assert (logprobs[1].top, len(logprobs[2].top)) == ((), 2)


def test_what_has_no_probability_is_null_never_infinite(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = torch.full((1, 6), -torch.inf)
    logits[0, 4] = 2.0
    one = once(logits, [make(logprobs=50, top_k=1)]).logprobs[0]
    assert (one.token_id, one.logprob, one.rank) == (4, 0.0, 1)
    assert one.top == ((4, 0.0), (0, None), (1, None), (2, None), (3, None), (5, None))
    banned = once(torch.tensor([[5.0, 1.0]]), [make(logprobs=1, bad_words_token_ids=((0,),))]).logprobs[0]
    assert (banned.token_id, banned.rank, banned.top[0][0]) == (1, 2, 0)
    assert math.isfinite(banned.logprob)


def test_ties_are_listed_by_id_however_many_are_asked_for(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = torch.zeros(1, 600)
    logits[0, 500] = 1.0
    for k in (1, 2, 7, 599, 600, 601):
        top = once(logits.expand(2, -1), [make(logprobs=k), make(logprobs=20)]).logprobs[0].top
        assert [token_id for token_id, _ in top] == [500, *[one for one in range(600) if one != 500]][:k]


def test_prompt_logprobs_are_of_the_token_that_follows() -> None:
    logits = torch.randn(5, 70, generator=torch.Generator().manual_seed(2))
    next_ids = torch.tensor([3, 0, 69, 5, 5])
    found = Sampler(1, 70, CPU).prompt_logprobs(logits, next_ids, 2)
    expected = logits.log_softmax(-1)
    assert [one.token_id for one in found] == next_ids.tolist()
    assert [one.logprob for one in found] == pytest.approx([expected[i, t].item() for i, t in enumerate(next_ids)])
    assert all(len(one.top) == 2 for one in found)
