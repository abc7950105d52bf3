"""A tiny random model on disk, and its transformers twin as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from offgen.engine import Engine, EngineOptions, open_engine
from tests.engine.tiny import CONTEXT, EOS, VOCAB


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield


@pytest.fixture(scope="session")
def oracle() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, eos_token_id=EOS, bos_token_id=1,
        tie_word_embeddings=True, initializer_range=0.3,
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
