"""Granite: Llama with multipliers on embeddings, attention, residuals and logits."""

from __future__ import annotations

from offgen.models import parts
from offgen.models.builder import Builder
from offgen.models.layers import Decoder, Layer, PreNormLayer
from offgen.models.llama import LLAMA_DEFAULTS
from offgen.models.rope import rope_config

DEFAULTS = {
    **LLAMA_DEFAULTS,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def build(b: Builder) -> Decoder:
    config = b.with_defaults(DEFAULTS)
    rope = rope_config(config, head_dim=config.head_dim)
    spec = b.spec(scale=float(config["attention_multiplier"]))
    attention_bias, mlp_bias = bool(config["attention_bias"]), bool(config["mlp_bias"])

    def layer(index: int, prefix: str) -> Layer:
        return PreNormLayer(
            input_norm=parts.norm(b, f"{prefix}.input_layernorm"),
            attention=parts.attention(
                b, f"{prefix}.self_attn", spec, rope, qkv_bias=attention_bias, out_bias=attention_bias
            ),
            mlp_norm=parts.norm(b, f"{prefix}.post_attention_layernorm"),
            mlp=parts.gated_mlp(b, f"{prefix}.mlp", act=config["hidden_act"], has_bias=mlp_bias),
            residual_scale=float(config["residual_multiplier"]),
        )

    return parts.decoder(
        b,
        [spec] * config.integer("num_hidden_layers"),
        layer,
        embed_scale=float(config["embedding_multiplier"]),
        logit_divisor=float(config["logits_scaling"]),
    )
