"""A tiny random model of every causal LM class of transformers: common sizes, and what single families need besides."""

from __future__ import annotations

from typing import Any

import oracle
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def names(text: str) -> list[str]:
    return text.split()


VOCAB = 199
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "n_embd": 32,
    "d_model": 32,
    "n_embed": 32,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "n_inner": 48,
    "num_hidden_layers": 3,
    "num_layers": 3,
    "n_layer": 3,
    "n_layers": 3,
    "decoder_layers": 3,
    "encoder_layers": 1,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "seq_length": 256,
    "sliding_window": 6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "is_decoder": True,
    "tie_word_embeddings": False,
}
# what would be large, or takes images or sound besides text
NO_TINY_MODEL = names("""
    blt dots3_note_text fuyu gemma3 gemma4 gemma4_text gemma4_unified gemma4_unified_assistant git got_ocr2
    longcat_flash mllama moss_transcribe_diarize phi4_multimodal reformer xlm xlnet
""")
LATENT = {"num_key_value_heads": 4}
BART_LIKE = {"encoder_layers": 3}
MAMBA_HEADS = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
OVERRIDES: dict[str, dict[str, Any]] = {
    "axk1": LATENT,
    "axk2": LATENT,
    "bamba": MAMBA_HEADS,
    "bart": BART_LIKE,
    "bigbird_pegasus": BART_LIKE,
    "blenderbot": BART_LIKE,
    "blenderbot-small": BART_LIKE,
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT,
    "dots3_note_text": LATENT,
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": LATENT,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 6},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {**MAMBA_HEADS, "layer_types": ["attention"] * 3},
    "helium": {"head_dim": 8},
    "mamba2": {"head_dim": 16, "num_heads": 4, "n_groups": 1},
    "marian": BART_LIKE,
    "mbart": BART_LIKE,
    "minicpm3": LATENT,
    "mvp": BART_LIKE,
    "pegasus": BART_LIKE,
    "plbart": BART_LIKE,
    "sarvam_mla": LATENT,
    "whisper": BART_LIKE,
}


def kinds() -> list[str]:
    """Every model_type with a causal LM class."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def config_of(kind: str, **options: Any) -> Any:
    config_class = CONFIG_MAPPING[kind]
    known = set(config_class().to_dict()) | set(getattr(config_class, "attribute_map", {}))
    mapped = getattr(config_class, "attribute_map", {})
    values = {key: value for key, value in COMMON.items() if key in known and key not in mapped}
    if "qk_rope_head_dim" in known:
        values.pop("head_dim", None)  # latent attention: heads are sized by its own keys
    return config_class(**{**values, **OVERRIDES.get(kind, {}), **options})


def model_of(kind: str, seed: int = 0, **options: Any) -> Any:
    config = config_of(kind, **options)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = model_class._from_config(config, dtype=torch.float32)
    return oracle.randomize(model, seed)
