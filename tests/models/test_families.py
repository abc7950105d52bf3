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
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": (
        "Gemma2",
        {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 6, "num_hidden_layers": 7}),
    "gemma3 scaled": (
        "Gemma3Text",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3", {"num_key_value_heads": 6, "sliding_window": 9}),
    "phi3 partial longrope": (
        "Phi3",
        {
            "max_position_embeddings": 512,
            "original_max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.5],
                "long_factor": [2.0, 4.0],
            },
        },
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
            "attention_bias": True,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"sliding_window": 6, "num_hidden_layers": 5}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3 windows": ("SmolLM3", {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 6}),
    "qwen3 biases tied": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_native_family_matches_transformers_token_for_token(case: str, backend: Backend, tmp_path: Path) -> None:
    family, options = CASES[case]
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **options})
    twin = oracle.randomize(transformers.AutoModelForCausalLM.from_config(config))
    model = load_model(oracle.save(twin, tmp_path), backend, model_impl="native")
    prompts = oracle.prompts(config.vocab_size)
    expected = [oracle.greedy(twin, prompt, 8) for prompt in prompts]
    for chunk in (10_000, 4):
        assert paged_rows.generate(model, backend, prompts, max_tokens=8, chunk=chunk) == expected
