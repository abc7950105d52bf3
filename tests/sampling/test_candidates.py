"""A draw settled among the likeliest columns is the draw over all of them."""

from __future__ import annotations

import itertools

import pytest
import torch

from offgen.sampling.blockwise import block_maxima
from offgen.sampling.candidates import likeliest
from offgen.sampling.chooser import Chooser, Draws
from offgen.sampling.params import SamplingParams

CPU = torch.device("cpu")


@pytest.mark.parametrize("num_columns", [1, 50, 256, 700, 5000, 20_000, 20_011])
@pytest.mark.parametrize("ties", [False, True])
def test_the_likeliest_are_found_in_order(num_columns: int, ties: bool) -> None:
    logits = torch.randn(9, num_columns, generator=torch.Generator().manual_seed(num_columns))
    logits = logits.mul_(3).round_() if ties else logits
    for count in (1, 2, 7, 19):
        count = min(count, num_columns)
        values, columns = likeliest(logits, block_maxima(logits), count)
        assert torch.equal(values, logits.sort(-1, descending=True).values[:, :count])
        assert torch.equal(logits.gather(1, columns), values)
        pairs = list(zip(values.tolist(), columns.tolist(), strict=True))
        assert all(sorted(zip([-v for v in vs], cs, strict=True)) == list(zip([-v for v in vs], cs, strict=True))
                   for vs, cs in pairs)  # fmt: skip
        assert all(len(set(row)) == count for row in columns.tolist())


def choose(logits: torch.Tensor, params: list[SamplingParams]) -> list[int]:
    """params[row] for each row, every row its own stream."""
    draws = Draws.of(params, [row * 7919 for row in range(len(params))], vocab_size=logits.shape[1], device=CPU)
    positions = torch.zeros(len(params), dtype=torch.int64)
    return Chooser().choose(logits, block_maxima(logits), draws, positions).tolist()


def allowed(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """The columns that vLLM's rules keep, slowly."""
    order = sorted(range(len(logits)), key=lambda column: (-logits[column].item(), column))
    if 0 < params.top_k < len(order):
        floor = logits[order[params.top_k - 1]]
        order = [column for column in order if logits[column] >= floor]
    weights = ((logits[order] - logits[order[0]]) / params.temperature).double().exp()
    kept, held = [], 0.0
    for column, weight in zip(order, weights.tolist(), strict=True):
        if (held >= params.top_p * weights.sum().item() and params.top_p < 1.0) or weight < params.min_p:
            break
        kept.append(column)
        held += weight
    return set(kept or order[:1])


CASES = list(itertools.product((0, 1, 5, 63, 64, 65, 200), (1.0, 0.9, 0.3, 0.01), (0.0, 0.05, 0.9), (0.5, 1.0, 3.0)))


@pytest.mark.parametrize("num_columns", [3, 64, 65, 300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_draws_stay_within_the_rules_and_reach_all_of_them(num_columns: int) -> None:
    """Many streams over one row: nothing outside the allowed columns, and every likely one of them."""
    logits = torch.randn(num_columns, generator=torch.Generator().manual_seed(num_columns)) * 2
    num = 100
    for top_k, top_p, min_p, temperature in CASES[:: 1 if num_columns < 1000 else 11]:
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        columns = allowed(logits, params)
        found = choose(logits.expand(num, -1), [params] * num)
        assert set(found) <= columns, params
        weights = (logits / temperature).softmax(-1)
        inside = weights[sorted(columns)].sum()
        likely = {column for column in columns if weights[column] / inside > 0.1}
        assert likely <= set(found), params


def test_a_rows_filters_do_not_depend_on_the_other_rows() -> None:
    logits = torch.randn(len(CASES), 3000, generator=torch.Generator().manual_seed(1)) * 3
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=row) for row, (k, p, m, t) in enumerate(CASES)
    ]
    keys = [row * 104_729 for row in range(len(CASES))]
    positions = torch.zeros(len(CASES), dtype=torch.int64)
    whole = Chooser().choose(
        logits, block_maxima(logits), Draws.of(params, keys, vocab_size=3000, device=CPU), positions
    )
    for row in range(0, len(CASES), 5):
        draws = Draws.of([params[row]], [keys[row]], vocab_size=3000, device=CPU)
        one = logits[row : row + 1]
        assert Chooser().choose(one, block_maxima(one), draws, positions[:1]).item() == whole[row], params[row]


def test_ties_with_the_last_of_top_k_may_be_drawn_however_many() -> None:
    for num_tied in (3, 30, 300):
        logits = torch.zeros(1000)
        logits[:num_tied] = 4.0
        found = set(choose(logits.expand(2000, -1), [SamplingParams(temperature=1.0, top_k=2)] * 2000))
        assert found == set(range(num_tied))
