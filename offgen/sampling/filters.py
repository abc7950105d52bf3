"""Top-k, top-p and min-p over the whole vocabulary: which columns stay, each row by its own rule. In place.

Top-k works on logits (-inf is out), before exp rounds near ones together; the others on weights,
exp((logit - maximum) / temperature): the likeliest column weighs 1, one that is out weighs 0. No result depends on the
order a sort leaves ties in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offgen.sampling.blockwise import block_sums, put_rows, take_rows


def keep_top_k(logits: torch.Tensor, rows: Sequence[int], top_k: Sequence[int]) -> None:
    """Keep each row's top_k highest columns, and those that tie with the last of them (as transformers and vLLM do)."""
    part = take_rows(logits, rows)
    highest = part.topk(max(top_k), dim=-1).values
    places = torch.tensor([k - 1 for k in top_k], device=logits.device)
    part.masked_fill_(part < highest.gather(1, places[:, None]), -torch.inf)
    put_rows(logits, rows, part)


def keep_top_p(weights: torch.Tensor, rows: Sequence[int], top_p: Sequence[float]) -> None:
    """Keep the smallest set of heaviest columns that holds top_p of each row's weight: at least one.

    Of columns that tie with the lightest one kept, those with the lowest ids are kept, as many as are needed.
    """
    part = take_rows(weights, rows)
    shares = torch.tensor(top_p, dtype=torch.float64, device=weights.device)[:, None]
    totals = block_sums(part).cumsum(-1)[:, -1:]
    # Columns lighter than (1 - p) / V of the total hold less than 1 - p together, so none of them can be in the set:
    # only the rest is sorted. Half of that, for rounding.
    floors = (1.0 - shares) * totals * (0.5 / weights.shape[1])
    ordered = _heavy(part, floors).sort(dim=-1, descending=True).values.to(torch.float64)
    heavier = torch.nn.functional.pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    is_kept = heavier < shares * totals
    num_kept = is_kept.sum(-1, keepdim=True).clamp_(min=1)
    lightest = ordered.gather(1, num_kept - 1)
    ties = ordered == lightest
    num_ties = (is_kept & ties).sum(-1).clamp_(min=1)
    part.masked_fill_(part < lightest, 0.0)
    for row in (ties.sum(-1) > num_ties).nonzero().flatten().tolist():
        columns = (part[row] == lightest[row]).nonzero().flatten()
        part[row, columns[int(num_ties[row]) :]] = 0.0
    put_rows(weights, rows, part)


def keep_min_p(weights: torch.Tensor, rows: Sequence[int], min_p: Sequence[float]) -> None:
    """Keep the columns that weigh at least min_p of the heaviest."""
    part = take_rows(weights, rows)
    limits = torch.tensor(min_p, dtype=weights.dtype, device=weights.device)[:, None]
    part.masked_fill_(part < limits, 0.0)
    put_rows(weights, rows, part)


def _heavy(weights: torch.Tensor, floors: torch.Tensor) -> torch.Tensor:
    """weights [R, V] -> [R, C]: each row's weights of at least its floor, then zeros; C is the most any row has."""
    rows, columns = (weights >= floors).nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=weights.shape[0])
    width = int(counts.max()) if rows.numel() else 1
    starts = counts.cumsum(0) - counts
    heavy = weights.new_zeros(weights.shape[0], width)
    heavy[rows, torch.arange(rows.numel(), device=weights.device) - starts[rows]] = weights[rows, columns]
    return heavy
