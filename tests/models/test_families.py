"""Native families against transformers: same tokens, whatever the chunking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import paged_rows
import pytest
import transformers

from offgen.backends import Backend
from offgen.models import load_model

SMALL = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("Llama", {"head_dim": 20}),
    "llama gelu": ("Llama", {"hidden_act": "gelu"}),
    "llama3 rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral window": ("Mistral", {"sliding_window": 7}),
    "mistral no window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2 windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen2 window without flag": ("Qwen2", {"use_sliding_window": False, "sliding_window": 6, "max_window_layers": 1}),
    "qwen2 layer types": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 biases tied": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_native_family_matches_transformers_token_for_token(case: str, backend: Backend, tmp_path: Path) -> None:
    family, options = CASES[case]
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **options})
    twin = oracle.randomize(getattr(transformers, f"{family}ForCausalLM")(config))
    model = load_model(oracle.save(twin, tmp_path), backend, model_impl="native")
    prompts = oracle.prompts(config.vocab_size)
    expected = [oracle.greedy(twin, prompt, 8) for prompt in prompts]
    for chunk in (10_000, 4):
        assert paged_rows.generate(model, backend, prompts, max_tokens=8, chunk=chunk) == expected
