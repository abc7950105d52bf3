"""Top-k, top-p and min-p: which columns stay, each row by its own rule. In place.

Top-k works on logits (-inf is out), before exp rounds near ones together; the others on weights,
exp((logit - maximum) / temperature): the likeliest column weighs 1, one that is out weighs 0. No result depends on the
order a sort leaves ties in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offgen.sampling.blockwise import block_sums

_TOP_K_SIZES = (64, 1024)  # rows are searched together up to these; a row of k = 40,000 must not slow one of 20


def keep_top_k(logits: torch.Tensor, rows: Sequence[int], top_k: Sequence[int]) -> None:
    """Keep each row's top_k highest columns, and those that tie with the last of them (as transformers and vLLM do)."""
    for low, high in zip((0, *_TOP_K_SIZES), (*_TOP_K_SIZES, logits.shape[1]), strict=True):
        chosen = [(row, k) for row, k in zip(rows, top_k, strict=True) if low < k <= high]
        if not chosen:
            continue
        index = torch.tensor([row for row, _ in chosen], device=logits.device)
        places = torch.tensor([k - 1 for _, k in chosen], device=logits.device)
        part = logits[index]
        highest = part.topk(max(k for _, k in chosen), dim=-1).values
        logits[index] = part.masked_fill_(part < highest.gather(1, places[:, None]), -torch.inf)


def keep_top_p(weights: torch.Tensor, rows: Sequence[int], top_p: Sequence[float]) -> None:
    """Keep the smallest set of heaviest columns that holds top_p of each row's weight: at least one."""
    index = torch.tensor(rows, device=weights.device)
    shares = torch.tensor(top_p, dtype=torch.float64, device=weights.device)[:, None]
    part = weights[index]
    totals = block_sums(part).cumsum(-1)[:, -1:]
    # Columns lighter than (1 - p) / V of the total hold less than 1 - p together, so none of them can be in the set:
    # only the rest is sorted. Half of that, for rounding.
    floor = (1.0 - shares) * totals * (0.5 / weights.shape[1])
    heavy = _columns_where((part >= floor) & (part > 0))
    values = part.gather(1, heavy.clamp(min=0)).masked_fill_(heavy < 0, 0.0)
    ordered = values.sort(dim=-1, descending=True).values.to(torch.float64)
    heavier = torch.nn.functional.pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    is_kept = heavier < shares * totals
    num_kept = is_kept.sum(-1, keepdim=True).clamp_(min=1)
    lightest = ordered.gather(1, num_kept - 1).to(weights.dtype)
    num_ties = (is_kept & (ordered == lightest)).sum(-1, keepdim=True).clamp_(min=1)
    ties = values == lightest
    stays = (values > lightest) | (ties & (ties.cumsum(-1) <= num_ties))
    part.zero_()
    part.scatter_reduce_(1, heavy.clamp(min=0), values.masked_fill_(~stays, 0.0), "amax")
    weights[index] = part


def keep_min_p(weights: torch.Tensor, rows: Sequence[int], min_p: Sequence[float]) -> None:
    """Keep the columns that weigh at least min_p of the heaviest."""
    index = torch.tensor(rows, device=weights.device)
    limits = torch.tensor(min_p, dtype=weights.dtype, device=weights.device)[:, None]
    part = weights[index]
    weights[index] = part.masked_fill_(part < limits, 0.0)


def _columns_where(mask: torch.Tensor) -> torch.Tensor:
    """mask [R, V] -> [R, C]: each row's true columns, ascending, then -1; C is the most any row has, at least 1."""
    rows, columns = mask.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=mask.shape[0])
    width = int(counts.max()) if rows.numel() else 1
    result = torch.full((mask.shape[0], width), -1, dtype=torch.int64, device=mask.device)
    starts = counts.cumsum(0) - counts
    result[rows, torch.arange(rows.numel(), device=mask.device) - starts[rows]] = columns
    return result
