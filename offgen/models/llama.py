"""Llama and what is built like it: SmolLM2, Llama 2 and 3, Mistral (a window in every layer)."""

from __future__ import annotations

from offgen.models import parts
from offgen.models.builder import Builder
from offgen.models.layers import Decoder, Layer, PreNormLayer
from offgen.models.rope import rope_config

LLAMA_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
MISTRAL_DEFAULTS = {
    **LLAMA_DEFAULTS,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def build(b: Builder) -> Decoder:
    b.with_defaults(LLAMA_DEFAULTS)
    return _build(b, window=None, attention_bias=bool(b.config["attention_bias"]), mlp_bias=bool(b.config["mlp_bias"]))


def build_mistral(b: Builder) -> Decoder:
    b.with_defaults(MISTRAL_DEFAULTS)
    return _build(b, window=b.config["sliding_window"], attention_bias=False, mlp_bias=False)


def _build(b: Builder, *, window: int | None, attention_bias: bool, mlp_bias: bool) -> Decoder:
    config = b.config
    rope = rope_config(config, head_dim=config.head_dim)
    spec = b.spec(sliding_window=window)

    def layer(index: int, prefix: str) -> Layer:
        return PreNormLayer(
            input_norm=parts.norm(b, f"{prefix}.input_layernorm"),
            attention=parts.attention(
                b, f"{prefix}.self_attn", spec, rope, qkv_bias=attention_bias, out_bias=attention_bias
            ),
            mlp_norm=parts.norm(b, f"{prefix}.post_attention_layernorm"),
            mlp=parts.gated_mlp(b, f"{prefix}.mlp", act=config["hidden_act"], has_bias=mlp_bias),
        )

    return parts.decoder(b, [spec] * config.integer("num_hidden_layers"), layer)
