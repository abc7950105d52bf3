"""Logit bias, bad words, and the ids that may not end a row before its min_tokens: changes to single columns.

Each is a list of (row, column, value), laid flat over the rows of a step and applied by one operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offgen.sampling.history import History
from offgen.sampling.params import SamplingParams


def has_long_bad_words(params: SamplingParams) -> bool:
    """True if a bad word has several ids: then the row's output must be remembered."""
    return any(len(ids) > 1 for ids in params.bad_words_token_ids)


def add_bias(logits: torch.Tensor, rows: Sequence[int], params: Sequence[SamplingParams]) -> None:
    """Add each row's logit_bias in place. An id is named once per row."""
    places = [(row, token_id, bias) for row, one in zip(rows, params, strict=True) for token_id, bias in one.logit_bias]
    flat = torch.tensor([row * logits.shape[1] + token_id for row, token_id, _ in places], device=logits.device)
    biases = torch.tensor([bias for _, _, bias in places], dtype=logits.dtype, device=logits.device)
    logits.view(-1).index_add_(0, flat, biases)


def mask_ids(logits: torch.Tensor, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
    """Set the named columns of each row to -inf, in place."""
    places = [row * logits.shape[1] + token_id for row, some in zip(rows, ids, strict=True) for token_id in some]
    if places:
        logits.view(-1)[torch.tensor(places, device=logits.device)] = -torch.inf


def mask_bad_words(
    logits: torch.Tensor, rows: Sequence[int], seats: Sequence[int], params: Sequence[SamplingParams], history: History
) -> None:
    """Set to -inf, in place, each column that would complete a bad word begun by the row's last output ids."""
    words = [
        (row, seat, ids)
        for row, seat, one in zip(rows, seats, params, strict=True)
        for ids in one.bad_words_token_ids
        if len(ids) > 1
    ]
    mask_ids(logits, rows, [[ids[0] for ids in one.bad_words_token_ids if len(ids) == 1] for one in params])
    if not words:
        return
    length = max(len(ids) for _, _, ids in words) - 1
    heads = torch.tensor([[-2] * (length - len(ids) + 1) + list(ids[:-1]) for _, _, ids in words], device=logits.device)
    tails = history.tails([seat for _, seat, _ in words], length)
    is_begun = ((heads == tails) | (heads == -2)).all(-1)
    last = torch.tensor([row * logits.shape[1] + ids[-1] for row, _, ids in words], device=logits.device)
    limits = torch.where(is_begun, -torch.inf, torch.inf).to(logits.dtype)
    logits.view(-1).scatter_reduce_(0, last, limits, "amin")
