"""Log-probabilities of the raw model distribution: of given ids, their ranks, and the likeliest K.

Kept as tensors until somebody reads them, so that a step launched ahead waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from offgen.records import TokenLogprob
from offgen.sampling.blockwise import block_maxima, block_sums, padded_width


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """For R rows: what `read` turns into records.

    token_ids, logprobs, ranks   [R]
    top_ids, top_logprobs        [R, K], the likeliest first
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor

    def read(self, num_top: Sequence[int]) -> list[TokenLogprob]:
        """As records; num_top says how many of the likeliest each row wants."""
        rows = zip(
            self.token_ids.tolist(),
            self.logprobs.tolist(),
            self.ranks.tolist(),
            self.top_ids.tolist(),
            self.top_logprobs.tolist(),
            num_top,
            strict=True,
        )
        return [
            TokenLogprob(token_id, _finite(logprob), rank, tuple(zip(ids[:k], map(_finite, logprobs[:k]), strict=True)))
            for token_id, logprob, rank, ids, logprobs, k in rows
        ]


def raw_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> RawLogprobs:
    """logits [R, V] as the model made them; token_ids [R]; num_top is cut to V."""
    num_rows, num_columns = logits.shape
    peaks = block_maxima(logits).amax(-1, keepdim=True)
    weights = torch.zeros(num_rows, padded_width(num_columns), dtype=logits.dtype, device=logits.device)
    torch.sub(logits, peaks, out=weights[:, :num_columns])
    weights[:, :num_columns].exp_()
    totals = block_sums(weights).cumsum(-1)[:, -1:]
    log_totals = peaks.to(torch.float64) + totals.log()
    chosen = logits.gather(1, token_ids[:, None])
    top_values, top_ids = _likeliest(logits, min(num_top, num_columns))
    return RawLogprobs(
        token_ids=token_ids,
        logprobs=(chosen - log_totals).squeeze(1).to(torch.float32),
        ranks=(logits > chosen).sum(-1) + 1,
        top_ids=top_ids,
        top_logprobs=(top_values - log_totals).to(torch.float32),
    )


def _likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest `count` values of each row and their columns; columns of equal value in ascending order.

    topk leaves ties in no stated order. Sorting by column and then, stably, by value settles all but which of the
    columns that tie with the last are in; those rows are done again whole.
    """
    if count == 0:
        return logits[:, :0], torch.zeros(logits.shape[0], 0, dtype=torch.int64, device=logits.device)
    width = min(count + 1, logits.shape[1])
    values, columns = logits.topk(width, dim=-1)
    if width > count:
        cut = (values[:, count - 1] == values[:, count]).nonzero().flatten()
        if cut.numel():
            again = logits[cut].sort(dim=-1, descending=True, stable=True)
            values[cut], columns[cut] = again.values[:, :width], again.indices[:, :width]
    columns, order = columns[:, :count].sort(dim=-1)
    values, order = values[:, :count].gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, columns.gather(1, order)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
