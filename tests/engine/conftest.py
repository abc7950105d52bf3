"""A tiny random model on disk, its transformers twin as the oracle, and prompts of all lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from offgen.engine import Engine, EngineOptions, open_engine
from offgen.records import Completion, Prompt, Row
from offgen.sampling.params import SamplingParams

VOCAB, CONTEXT, EOS = 320, 128, 2


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield


@pytest.fixture(scope="session")
def oracle() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, eos_token_id=EOS, bos_token_id=1, tie_word_embeddings=True,
        initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def folder(oracle: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-llama")
    oracle.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def engine_of(folder: Path) -> Callable[..., Engine]:
    """engine_of(num_blocks=…): an engine over the tiny model."""

    def build(**options: Any) -> Engine:
        return open_engine(folder, EngineOptions(**{"device": "cpu", "num_blocks": 256, "threads": 1, **options}))

    return build


def prompt_of(row_id: int, token_ids: list[int], **params: Any) -> Prompt:
    row = Row(row_id=row_id, record=None, index=0, values={}, where=f"test:{row_id}")
    return Prompt(row=row, token_ids=token_ids, params=SamplingParams(**params))


def random_prompts(count: int, *, seed: int = 0, longest: int = 60, **params: Any) -> list[Prompt]:
    rng = random.Random(seed)
    return [
        prompt_of(i, [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest))], **params) for i in range(count)
    ]


def outputs(completions: Iterator[Completion]) -> dict[tuple[int, int], list[int]]:
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
