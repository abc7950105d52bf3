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
from offgen.sampling.candidates import likeliest


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
    maxima = block_maxima(logits)
    peaks = maxima.amax(-1, keepdim=True)
    table = torch.zeros(num_rows, padded_width(num_columns), dtype=torch.float32, device=logits.device)
    inside = table[:, :num_columns]
    torch.sub(logits, peaks, out=inside)
    inside.exp_()
    log_totals = peaks.to(torch.float64) + block_sums(table).cumsum(-1)[:, -1:].log()
    chosen = logits.gather(1, token_ids[:, None])
    torch.gt(logits, chosen, out=inside)
    num_above = block_sums(table).sum(-1).to(torch.int64)  # as floats: a sum of booleans takes ten times as long
    top_values, top_ids = _top(logits, maxima, min(num_top, num_columns))
    return RawLogprobs(
        token_ids=token_ids,
        logprobs=(chosen - log_totals).squeeze(1).to(torch.float32),
        ranks=num_above + 1,
        top_ids=top_ids,
        top_logprobs=(top_values - log_totals).to(torch.float32),
    )


def _top(logits: torch.Tensor, maxima: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest `count` values of each row and their columns, ties by column.

    Rows in which a column that is left out ties with the last are done again, whole.
    """
    if count == 0:
        return logits[:, :0], torch.zeros(logits.shape[0], 0, dtype=torch.int64, device=logits.device)
    width = min(count + 1, logits.shape[1])
    values, columns = likeliest(logits, maxima, width)
    if width > count:
        cut = (values[:, count - 1] == values[:, count]).nonzero().flatten()
        if cut.numel():
            again = logits[cut].sort(dim=-1, descending=True, stable=True)
            values[cut], columns[cut] = again.values[:, :width], again.indices[:, :width]
    return values[:, :count], columns[:, :count]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
