"""The likeliest few columns of a row. Most draws are settled among them, without a pass over the vocabulary.

Whether they settle a row is decided by the row alone, so its result does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offgen.sampling.blockwise import BLOCK

NUM_CANDIDATES = 64


def likeliest(values: torch.Tensor, maxima: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest `count` values of each row and their columns, columns of equal value in ascending order.

    values  [R, V]       count <= V
    maxima  [R, blocks]  `block_maxima(values)`: the count highest values are in the count blocks of highest maxima

    Of columns that tie with the last, any may be among them. A column of -inf may be V or more.
    """
    num_columns = values.shape[1]
    if 4 * count > maxima.shape[1]:
        found, columns = values.topk(count, dim=-1)
    else:
        blocks = maxima.topk(count, dim=-1).indices
        places = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=values.device)).flatten(1)
        if num_columns % BLOCK:
            part = values.gather(1, places.clamp(max=num_columns - 1))
            part.masked_fill_(places >= num_columns, -torch.inf)
        else:
            part = values.gather(1, places)
        found, order = part.topk(count, dim=-1)
        columns = places.gather(1, order)
    columns, order = columns.sort(dim=-1)
    found, order = found.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return found, columns.gather(1, order)


@dataclass(frozen=True, slots=True)
class Limits:
    """Filters of R rows, [R, 1] each. Off: top_k 0, top_p 1, min_p 0.

    totals  float64: weight of the whole row, where top_p is on and top_k off; else unused
    """

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    totals: torch.Tensor


def narrow(
    values: torch.Tensor, weights: torch.Tensor, limits: Limits, num_columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the filters to candidates. values, weights [R, C]: logits in descending order, exp((logit - max) / T).

    Returns the weights that stay, as float64 [R, C], and [R] whether no other column can stay beside them.
    """
    width = values.shape[1]
    place = torch.arange(width, device=values.device)
    has_top_k = limits.top_k > 0
    is_short = has_top_k & (limits.top_k < width)
    last = torch.where(is_short, limits.top_k, width) - 1
    has_tie = is_short & (values.gather(1, last) == values.gather(1, (last + 1).clamp(max=width - 1)))
    kept = torch.where(place <= last, weights, 0.0).to(torch.float64)

    running = kept.cumsum(-1)
    totals = torch.where(is_short, running[:, -1:], limits.totals)
    heavier = torch.nn.functional.pad(running[:, :-1], (1, 0))
    is_in_nucleus = (heavier < limits.top_p * totals) | (limits.top_p >= 1.0) | (place == 0)
    last = is_in_nucleus.sum(-1, keepdim=True) - 1
    has_total = is_short | ~has_top_k
    is_nucleus_whole = (limits.top_p < 1.0) & has_total & (values.gather(1, last) > values[:, -1:])
    is_cut = (weights[:, -1:] < limits.min_p) & (has_total | (limits.top_p >= 1.0))
    is_settled = (is_short | is_nucleus_whole | is_cut) & ~has_tie
    kept = torch.where(is_in_nucleus & (weights >= limits.min_p), kept, 0.0)
    return kept, is_settled.squeeze(1) | (~has_tie & ~has_top_k).squeeze(1) & (width == num_columns)


def draw_candidate(kept: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """kept [R, C] float64 weights, numbers [R] float64 in [0, 1). Returns places [R, 1]."""
    running = kept.cumsum(-1)
    targets = numbers[:, None] * running[:, -1:]
    return (running <= targets).sum(-1, keepdim=True).clamp_(max=kept.shape[1] - 1)
