"""The sampler kernel against reference_sampling.py, which sorts; and against what a distribution must look like."""

from __future__ import annotations

import pytest
import torch
from offgen_kernels import reference_sampling
from offgen_kernels.logprobs import token_logprobs, top_logprobs
from offgen_kernels.sample import sample

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
RULES = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 100.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 700, "temperature": 3.0},
    {"top_k": 10**6},
    {"top_k": -1, "top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999, "temperature": 2.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.05, "temperature": 0.7},
]


def arguments(rules, device, seed=0):
    rows = [OFF | rule for rule in rules]
    generator = torch.Generator().manual_seed(seed)
    dtypes = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    columns = {name: torch.tensor([row[name] for row in rows], dtype=dtype) for name, dtype in dtypes.items()}
    columns["keys"] = torch.randint(-(2**63), 2**63 - 1, (len(rows),), generator=generator)
    columns["positions"] = torch.arange(len(rows))
    return {name: column.to(device) for name, column in columns.items()}


def logits_of(num_rows, size, device, kind="normal", seed=0):
    logits = torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed)) * 3
    if kind == "coarse":  # what bfloat16 makes of them: ties everywhere
        logits = logits.bfloat16().float().round(decimals=0)
    if kind == "peaked":
        logits[:, size // 2] = 40.0
    if kind == "outliers":
        logits[:, 0], logits[:, 1:] = 1e30, logits[:, 1:] * 1e-20
        logits[:, -1] = -1e30
    if kind == "masked":
        logits[:, ::2] = -torch.inf
    return logits.to(device)


def check(logits, **columns):
    ids, non_finite = sample(logits, **columns)
    expected, expected_non_finite = reference_sampling.sample(logits, **columns)
    assert ids.tolist() == expected.tolist()
    assert non_finite.tolist() == expected_non_finite.tolist()


@pytest.mark.parametrize("kind", ["normal", "coarse", "outliers"])
def test_every_rule_equals_the_reference_in_one_batch(device, kind):
    columns = arguments(RULES, device)
    check(logits_of(len(RULES), 5003, device, kind), **columns)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("size", [1, 32, 2049, 32000])
@pytest.mark.parametrize("kind", ["normal", "coarse", "peaked", "outliers", "masked"])
def test_every_rule_equals_the_reference_at_every_size(device, kind, size, seed):
    if kind == "masked" and size == 1:
        pytest.skip("nothing is left")
    columns = arguments(RULES, device, seed=seed)
    check(logits_of(len(RULES), size, device, kind, seed=seed), **columns)


def test_all_equal_logits_keep_every_column(device):
    columns = arguments([{"top_k": 3}, {"top_p": 0.5}], device)
    check(torch.zeros(2, 4500, device=device), **columns)


def test_rows_that_cannot_go_on_are_told_apart(device):
    logits = logits_of(5, 300, device)
    logits[0, 7], logits[1, 299], logits[3], logits[4, 5] = torch.nan, torch.inf, -torch.inf, -torch.inf
    ids, non_finite = sample(logits, **arguments([{}, {"top_k": 2}, {}, {"temperature": 0.0}, {"top_p": 0.5}], device))
    assert non_finite.tolist() == [True, True, False, True, False]
    assert ids[[0, 1, 3]].tolist() == [0, 0, 0]


def test_a_row_draws_the_same_wherever_it_stands(device):
    logits, columns = logits_of(len(RULES), 700, device), arguments(RULES, device)
    together, _ = sample(logits, **columns)
    for row in range(0, len(RULES), 3):
        alone, _ = sample(
            logits[row : row + 1], **{name: column[row : row + 1].contiguous() for name, column in columns.items()}
        )
        assert alone.tolist() == [together[row]]


def test_half_precision_logits_are_read_as_they_are(device):
    logits, columns = logits_of(4, 300, device).half(), arguments(RULES[1:5], device)
    assert sample(logits, **columns)[0].tolist() == sample(logits.float(), **columns)[0].tolist()


def test_draws_follow_the_distribution(device):
    """The reference's noise, which the kernel is held to above: chi-squared over 8 columns, rare ones included."""
    logits = torch.tensor([0.0, 1.0, -2.0, 3.0, -6.0, 2.0, 0.5, -1.0])
    num_draws = 200_000
    keys, positions = torch.full((num_draws,), 12345), torch.arange(num_draws)
    draws = (logits + reference_sampling.gumbel_noise(keys, positions, 8)).argmax(-1)
    counts, expected = torch.bincount(draws, minlength=8), logits.softmax(-1) * num_draws
    assert ((counts - expected) ** 2 / expected).sum() < 29.9  # 1 in 10,000


def test_wrong_shapes_are_refused(device):
    columns = arguments([{}, {}], device)
    with pytest.raises(ValueError, match="temperature"):
        sample(logits_of(3, 10, device), **columns)
    with pytest.raises(ValueError, match="top_k"):
        sample(logits_of(2, 10, device), **columns | {"top_k": columns["top_k"].long()})


@pytest.mark.parametrize("kind", ["normal", "coarse", "outliers", "masked"])
def test_token_logprobs_and_ranks(device, kind):
    logits = logits_of(4, 3001, device, kind)
    token_ids = torch.tensor([0, 1, 1500, 3000], device=device)
    logprobs, ranks = token_logprobs(logits, token_ids)
    expected, expected_ranks = reference_sampling.token_logprobs(logits, token_ids)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    assert ranks.tolist() == expected_ranks.tolist()


@pytest.mark.parametrize(("size", "count"), [(3001, 20), (5, 5), (2100, 300)])
@pytest.mark.parametrize("kind", ["normal", "coarse"])
def test_top_logprobs(device, kind, size, count):
    logits = logits_of(3, size, device, kind)
    ids, logprobs = top_logprobs(logits, count)
    expected_ids, expected = reference_sampling.top_logprobs(logits, count)
    assert ids.tolist() == expected_ids.tolist()
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)


def test_top_logprobs_of_fewer_columns_than_asked_for(device):
    logits = torch.full((1, 10), -torch.inf, device=device)
    logits[0, 7], logits[0, 2] = 1.0, 2.0
    ids, logprobs = top_logprobs(logits, 3)
    assert ids.tolist() == [[2, 7, -1]]
    assert logprobs[0, 2] == -torch.inf
