"""The specification of the sampling ops, in plain torch, written to be read: which columns stay, the noise, the choice.

Shapes: S rows, V columns (the vocabulary). A column's weight is exp((logit - the row's largest) / temperature).
"""

from __future__ import annotations

import torch

_MASK_32 = 0xFFFFFFFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """A logical right shift of int64: torch's own copies the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mixed_64(value: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer."""
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def _mixed_32(value: torch.Tensor) -> torch.Tensor:
    """A 32-bit finalizer (lowbias32, Wellons 2018), on int64 that holds 32 bits."""
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & _MASK_32
    value = ((value ^ (value >> 15)) * 0x846CA68B) & _MASK_32
    return value ^ (value >> 16)


def gumbel_noise(keys: torch.Tensor, positions: torch.Tensor, num_columns: int) -> torch.Tensor:
    """[S, V] float32, a pure function of (key, position, column).

    keys       [S]  int64: one sample's stream, hashed from seed, row and sample
    positions  [S]  int64: how many tokens the sample has already
    """
    state = _mixed_64(keys + (positions + 1) * _signed(0x9E3779B97F4A7C15))[:, None]
    low, high = state & _MASK_32, _shifted(state, 32)
    columns = torch.arange(num_columns, device=keys.device)
    bits = _mixed_32(_mixed_32((columns * 0x9E3779B1 & _MASK_32) ^ low) ^ high)
    # u is fine near 0, where the winners are: their waiting times -log(1 - u) are the short ones
    u = torch.clamp((bits.to(torch.float32) + 0.5) * 2.0**-32, max=1 - 2.0**-24)
    waiting = torch.where(u < 2.0**-10, u * (1 + u * (0.5 + u / 3)), -torch.log(1 - u))
    return -torch.log(waiting)


def keep_likeliest(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """[S, V] bool: the columns that stay. Ties stay or go together.

    top_k  a column stays if fewer than k are strictly higher (0 or less: off)
    top_p  then, if the strictly heavier ones hold less than top_p of the weight that is left (1 or more: off)
    min_p  then, if it weighs at least min_p of the heaviest (0 or less: off)
    """
    order = logits.argsort(dim=-1, descending=True)
    ordered = logits.gather(1, order)
    rank = torch.arange(logits.shape[1], device=logits.device).expand_as(ordered)
    is_tie = torch.nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    first = torch.where(is_tie, 0, rank).cummax(-1).values  # how many are strictly higher
    k = torch.where(top_k > 0, top_k, logits.shape[1])[:, None]
    is_kept = first < k
    weights = torch.exp((ordered - ordered[:, :1]).double() / temperature.double()[:, None]) * is_kept
    heavier = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))
    is_kept &= (top_p >= 1)[:, None] | (heavier.gather(1, first) < top_p.double()[:, None] * heavier[:, -1:])
    is_kept &= weights >= min_p.double()[:, None]
    return torch.zeros_like(is_kept).scatter_(1, order, is_kept)


def sample(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    keys: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids [S] int64, non-finite [S] bool): the kept column of the largest logit / temperature + Gumbel noise.

    A row of temperature 0 takes its largest logit, the first of equals. A row with NaN, +inf or nothing but -inf is
    non-finite and gets id 0.
    """
    non_finite = (logits.isnan() | (logits == torch.inf)).any(-1) | (logits == -torch.inf).all(-1)
    safe = torch.where(non_finite[:, None], torch.zeros_like(logits), logits)
    is_greedy = temperature == 0
    warmth = torch.where(is_greedy, torch.ones_like(temperature), temperature)
    scores = safe / warmth[:, None] + gumbel_noise(keys, positions, logits.shape[1])
    scores = scores.masked_fill(~keep_likeliest(safe, warmth, top_k, top_p, min_p), -torch.inf)
    chosen = torch.where(is_greedy, safe.argmax(-1), scores.argmax(-1))
    return chosen.masked_fill(non_finite, 0), non_finite


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log softmax at each row's token [S] float32, its rank [S] int32: 1 + how many columns are strictly higher)."""
    chosen = logits.gather(1, token_ids[:, None])
    logprobs = logits.double().log_softmax(-1).gather(1, token_ids[:, None])
    return logprobs.squeeze(1).float(), ((logits > chosen).sum(-1) + 1).int()


def top_logprobs(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [S, count] int64, log softmax [S, count] float32): the likeliest first, equals by column."""
    ordered = logits.double().log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    return ordered.indices[:, :count], ordered.values[:, :count].float()
