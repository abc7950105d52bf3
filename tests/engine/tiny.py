"""What the engine's tests share: prompts of all lengths, and what transformers makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import torch
from transformers import LlamaForCausalLM

from offgen.records import Completion, Prompt, Row
from offgen.sampling.params import SamplingParams

VOCAB, CONTEXT, EOS = 320, 128, 2


def prompt_of(row_id: int, token_ids: list[int], **params: Any) -> Prompt:
    row = Row(row_id=row_id, record=None, index=0, values={}, where=f"test:{row_id}")
    return Prompt(row=row, token_ids=token_ids, params=SamplingParams(**params))


def random_prompts(count: int, *, seed: int = 0, longest: int = 60, **params: Any) -> list[Prompt]:
    rng = random.Random(seed)
    return [
        prompt_of(i, [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest))], **params) for i in range(count)
    ]


def outputs(completions: Iterable[Completion]) -> dict[tuple[int, int], list[int]]:
    """Token ids by (row id, sample); fails on a row that comes twice."""
    found: dict[tuple[int, int], list[int]] = {}
    for completion in completions:
        key = (completion.row.row_id, completion.sample_index)
        assert key not in found
        assert completion.error is None, completion.error
        found[key] = list(completion.token_ids)
    return found


@torch.inference_mode()
def greedy(oracle: LlamaForCausalLM, prompt: Prompt) -> list[int]:
    """What transformers generates for one prompt alone."""
    limit = min(prompt.params.max_tokens, CONTEXT - len(prompt.token_ids))
    ids = torch.tensor([list(prompt.token_ids)])
    out = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=limit,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=EOS,
    )
    return [int(t) for t in out[0, ids.shape[1] :]]
