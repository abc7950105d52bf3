"""Drives a model over paged rows without an engine: chunked prefill, decode and mixed steps, greedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from offgen.backends.base import AttentionInputs


@dataclass
class PagedRow:
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


def generate(
    model: Any, backend: Any, prompts: list[list[int]], *, max_tokens: int, chunk: int = 10_000, block_size: int = 4
) -> list[list[int]]:
    """Rows enter one a step, so that prefill chunks of some meet the decodes of others."""
    longest = max(len(prompt) for prompt in prompts) + max_tokens
    num_blocks = len(prompts) * (-(-longest // block_size)) + 1
    caches = backend.allocate_kv(len(model.config.attention), num_blocks, block_size, list(model.config.attention))
    # scattered, so that nothing leans on blocks lying side by side
    free = [int(i) for i in torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))]
    rows = [PagedRow(list(prompt)) for prompt in prompts]
    running: list[PagedRow] = []
    waiting = list(rows)
    while waiting or running:
        if waiting:
            running.append(waiting.pop(0))
        _step(model, running, caches, free, chunk, block_size)
        running = [row for row in running if len(row.output) < max_tokens]
    return [row.output for row in rows]


def _step(model: Any, running: list[PagedRow], caches: list[Any], free: list[int], chunk: int, block_size: int) -> None:
    is_decode = {id(row): row.output and len(row.tokens) - row.num_computed == 1 for row in running}
    batch = [row for row in running if not is_decode[id(row)]] + [row for row in running if is_decode[id(row)]]
    token_ids, positions, slots, seq_lens, ends = [], [], [], [], [0]
    for row in batch:
        new = row.tokens[row.num_computed : row.num_computed + chunk]
        end = row.num_computed + len(new)
        while len(row.block_ids) * block_size < end:
            row.block_ids.append(free.pop())
        for position in range(row.num_computed, end):
            positions.append(position)
            slots.append(row.block_ids[position // block_size] * block_size + position % block_size)
        token_ids += new
        row.num_computed = end
        seq_lens.append(end)
        ends.append(len(token_ids))
    width = max(len(row.block_ids) for row in batch)
    tables = [row.block_ids + [-1] * (width - len(row.block_ids)) for row in batch]
    inputs = AttentionInputs(
        slots=_int(slots),
        positions=_int(positions),
        block_tables=_int(tables),
        seq_lens=_int(seq_lens),
        cu_seqlens_q=_int(ends),
        num_decodes=sum(1 for row in batch if is_decode[id(row)]),
        max_seq_len=max(seq_lens),
        block_size=block_size,
    )
    with torch.inference_mode():
        hidden = model.forward(torch.tensor(token_ids), caches, inputs)
        sampling = [i for i, row in enumerate(batch) if row.num_computed == len(row.tokens)]
        if sampling:
            logits = model.compute_logits(hidden[[ends[i + 1] - 1 for i in sampling]])
            for i, token in zip(sampling, logits.argmax(-1).tolist(), strict=True):
                batch[i].output.append(token)


def _int(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
