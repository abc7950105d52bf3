"""Blocks, draws and filters against transformers and against slow, obvious code."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from offgen.sampling.blockwise import argmax, block_maxima, padded_width
from offgen.sampling.draw import draw
from offgen.sampling.filters import keep_min_p, keep_top_k, keep_top_p

SIZES = (1, 2, 31, 255, 256, 257, 300, 511, 512, 1000)


def weights_of(logits: torch.Tensor) -> torch.Tensor:
    padded = torch.full((logits.shape[0], padded_width(logits.shape[1])), -torch.inf)
    padded[:, : logits.shape[1]] = logits
    return (padded - padded.amax(-1, keepdim=True)).exp()


@pytest.mark.parametrize("num_columns", SIZES)
def test_argmax_is_the_first_maximum(num_columns: int) -> None:
    logits = torch.randint(0, 3, (200, num_columns), generator=torch.Generator().manual_seed(0)).float()
    logits[torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) < 0.3] = -torch.inf
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert argmax(logits, block_maxima(logits)).tolist() == expected


@pytest.mark.parametrize("num_columns", SIZES)
def test_maxima_pass_on_what_is_not_finite(num_columns: int) -> None:
    for value in (torch.nan, torch.inf):
        logits = torch.zeros(1, num_columns)
        logits[0, num_columns // 2] = value
        assert not block_maxima(logits).amax(-1).isfinite()


@pytest.mark.parametrize("num_columns", [1, 5, 256, 700])
def test_draws_follow_the_weights(num_columns: int) -> None:
    """An even grid of numbers hits each column as often as its weight says, within one."""
    generator = torch.Generator().manual_seed(num_columns)
    logits = torch.randn(1, num_columns, generator=generator) * 3
    logits[0, torch.rand(num_columns, generator=generator) < 0.3] = -torch.inf
    logits[0, -1] = 1.0
    weights = weights_of(logits)
    num = 20_000
    numbers = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    counts = torch.bincount(draw(weights.expand(num, -1), numbers), minlength=weights.shape[1])
    expected = weights[0].double() / weights[0].double().sum() * num
    assert (counts - expected).abs().max() <= 1.01


def test_a_column_of_weight_zero_is_never_drawn() -> None:
    weights = torch.zeros(3, 512)
    weights[0, 511], weights[1, 0], weights[2, 256] = 1e-30, 5.0, 1.0
    for number in (0.0, 0.5, 1 - 2.0**-52):
        assert draw(weights, torch.full((3,), number, dtype=torch.float64)).tolist() == [511, 0, 256]


def kept(processor: LogitsProcessor, logits: torch.Tensor) -> torch.Tensor:
    return processor(torch.zeros(logits.shape[0], 1, dtype=torch.int64), logits.clone()).isfinite()


@pytest.mark.parametrize("num_columns", [2, 32, 257, 3000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 6.0])
def test_filters_keep_what_transformers_keeps(num_columns: int, scale: float) -> None:
    logits = torch.randn(8, num_columns, generator=torch.Generator().manual_seed(3)) * scale
    rows = list(range(8))
    for k in (1, 2, 20, 65, 1100, num_columns + 1):
        ours = torch.full((8, padded_width(num_columns)), -torch.inf)
        ours[:, :num_columns] = logits
        keep_top_k(ours, rows, [min(k, num_columns)] * 8)
        assert torch.equal(ours[:, :num_columns].isfinite(), kept(TopKLogitsWarper(k), logits))
    for p in (0.01, 0.1, 0.5, 0.9, 0.999):
        weights = weights_of(logits)
        keep_top_p(weights, rows, [p] * 8)
        differs = (weights[:, :num_columns] > 0) != kept(TopPLogitsWarper(p), logits)
        assert differs.sum(-1).max() <= (
            scale < 0.1
        )  # transformers' float32 sum is off by a column where all are alike
    for p in (0.001, 0.1, 0.5, 1.0):
        weights = weights_of(logits)
        keep_min_p(weights, rows, [p] * 8)
        assert torch.equal(weights[:, :num_columns] > 0, kept(MinPLogitsWarper(p), logits))


@pytest.mark.parametrize("num_columns", [32, 64, 128, 130, 1000])
def test_top_p_takes_ties_by_id_and_only_as_many_as_it_needs(num_columns: int) -> None:
    weights = weights_of(torch.zeros(1, num_columns))
    keep_top_p(weights, [0], [0.5])
    assert weights[0].nonzero().flatten().tolist() == list(range(num_columns // 2))
    logits = torch.zeros(1, num_columns)
    logits[0, 7] = 1.0
    weights = weights_of(logits)
    keep_top_p(weights, [0], [2.0 / (num_columns + 1.7)])  # the heavy one weighs e, the others 1
    assert weights[0].nonzero().flatten().tolist() == [7]


def test_filters_touch_their_own_rows_only() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(5))
    weights = weights_of(logits)
    before = weights.clone()
    keep_top_p(weights, [1, 4], [0.3, 1e-9])
    assert torch.equal(weights[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
    assert (weights[4] > 0).sum() == 1
