"""Rows of a table, and a row's maximum, argmax and sum over fixed blocks of columns.

Blocks make the passes over the vocabulary vectorize (a plain argmax is ten times slower on a CPU), and fix the order of
every addition, so a row's bits do not depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

BLOCK = 256


def padded_width(num_columns: int) -> int:
    return -(-num_columns // BLOCK) * BLOCK


def take_rows(table: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The named rows, ascending: the table itself if they are all of it."""
    if len(rows) == table.shape[0]:
        return table
    # indexing by a list copies at a tenth of the speed
    return table.index_select(0, torch.tensor(rows, dtype=torch.int64, device=table.device))


def put_rows(table: torch.Tensor, rows: Sequence[int], part: torch.Tensor) -> None:
    """Write the named rows back, unless `part` is the table."""
    if part is not table:
        table.index_copy_(0, torch.tensor(rows, dtype=torch.int64, device=table.device), part)


def block_maxima(values: torch.Tensor) -> torch.Tensor:
    """values [R, V] -> [R, blocks]: each block's maximum, NaN if it holds one. The last block may be short."""
    num_columns = values.shape[1]
    whole = num_columns // BLOCK * BLOCK
    parts = []
    if whole:
        parts.append(values[:, :whole].view(values.shape[0], -1, BLOCK).amax(-1))
    if whole < num_columns:
        parts.append(values[:, whole:].amax(-1, keepdim=True))
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def argmax(values: torch.Tensor, maxima: torch.Tensor) -> torch.Tensor:
    """The first column that holds each row's maximum. maxima: `block_maxima(values)`."""
    num_columns = values.shape[1]
    if num_columns <= BLOCK:
        return values.argmax(-1)
    starts = maxima.argmax(-1, keepdim=True) * BLOCK
    offsets = torch.arange(BLOCK, device=values.device)
    columns = (starts + offsets).clamp_(max=num_columns - 1)  # repeats of the last column come after it: never first
    return (columns.gather(1, values.gather(1, columns).argmax(-1, keepdim=True))).squeeze(1)


def block_sums(values: torch.Tensor) -> torch.Tensor:
    """values [R, V], V a multiple of BLOCK -> [R, V / BLOCK] float64; each block is summed in float32."""
    return values.view(values.shape[0], -1, BLOCK).sum(-1).to(torch.float64)
