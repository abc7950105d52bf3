"""Draws one column per row in proportion to its weight: an inverse CDF in two levels, blocks and then columns.

One random number a row, two passes over the weights, and only operations along a row in a fixed order, so what a row
draws depends on its own weights and number alone.
"""

from __future__ import annotations

import torch

from offgen.sampling.blockwise import BLOCK, block_sums


def draw(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """weights [R, V] >= 0, V a multiple of BLOCK; numbers [R] float64 in [0, 1). Returns columns [R] int64.

    A column of weight zero is never drawn, unless the whole row is zero.
    """
    sums = block_sums(weights).cumsum(-1)
    targets = numbers[:, None] * sums[:, -1:]
    blocks = (sums <= targets).sum(-1, keepdim=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(blocks > 0, sums.gather(1, (blocks - 1).clamp_(min=0)), 0.0)
    columns = blocks * BLOCK + torch.arange(BLOCK, device=weights.device)
    inner = weights.gather(1, columns).to(torch.float64).cumsum(-1)
    chosen = (inner <= targets - before).sum(-1, keepdim=True)
    last = (inner < inner[:, -1:]).sum(-1, keepdim=True)  # a block's sum and its running sum may differ in the last bit
    return (blocks * BLOCK + torch.minimum(chosen, last)).squeeze(1)
