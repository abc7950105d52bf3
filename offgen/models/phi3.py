"""Phi-3 and Phi-4: projections stored merged, longrope, a share of each head rotated."""

from __future__ import annotations

from offgen.models import parts
from offgen.models.builder import Builder
from offgen.models.layers import Attention, Decoder, GatedMLP, Layer, PreNormLayer
from offgen.models.rope import rope_config

DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
OLD_NAMES = ("su", "yarn")  # what the first releases called longrope


def build(b: Builder) -> Decoder:
    config = b.with_defaults(DEFAULTS)
    scaling = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    for key in ("rope_type", "type"):
        if scaling.get(key) in OLD_NAMES:
            scaling[key] = "longrope"
    rope = rope_config(
        {**config, "rope_scaling": scaling},
        head_dim=config.head_dim,
        partial=1.0,
        scales_default_partially=True,
    )
    spec = b.spec(sliding_window=config["sliding_window"])
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    width = spec.num_heads * spec.head_dim
    act = parts.activation(b.backend, config["hidden_act"])

    def layer(index: int, prefix: str) -> Layer:
        return PreNormLayer(
            input_norm=parts.norm(b, f"{prefix}.input_layernorm"),
            attention=Attention(
                backend=b.backend,
                qkv=b.linear([f"{prefix}.self_attn.qkv_proj"], [width + 2 * spec.num_kv_heads * spec.head_dim], hidden),
                out=b.linear([f"{prefix}.self_attn.o_proj"], [hidden], width),
                spec=spec,
                cos_sin=b.rope_table(rope),
            ),
            mlp_norm=parts.norm(b, f"{prefix}.post_attention_layernorm"),
            mlp=GatedMLP(
                gate_up=b.linear([f"{prefix}.mlp.gate_up_proj"], [2 * inner], hidden),
                down=b.linear([f"{prefix}.mlp.down_proj"], [hidden], inner),
                activation=act,
            ),
        )

    return parts.decoder(b, [spec] * config.integer("num_hidden_layers"), layer)
