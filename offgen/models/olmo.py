"""OLMo2 and OLMo3: norms after attention and MLP, and over all heads of q and of k; OLMo3 adds windows by layer."""

from __future__ import annotations

from offgen.models import parts
from offgen.models.builder import Builder
from offgen.models.layers import Decoder, Layer, PostNormLayer
from offgen.models.rope import RopeConfig, rope_config, rope_of

OLMO2_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
OLMO3_DEFAULTS = {**OLMO2_DEFAULTS, "sliding_window": 4096}
OLMO3_THETA = 500_000.0


def build_olmo2(b: Builder) -> Decoder:
    config = b.with_defaults(OLMO2_DEFAULTS)
    rope = rope_config(config, head_dim=config.head_dim)
    return _build(b, ["full_attention"] * config.integer("num_hidden_layers"), {"full_attention": rope})


def build_olmo3(b: Builder) -> Decoder:
    config = b.with_defaults(OLMO3_DEFAULTS)
    count = config.integer("num_hidden_layers")
    if config.get("layer_types") is None:
        kinds = ["sliding_attention" if (index + 1) % 4 else "full_attention" for index in range(count)]
    else:
        kinds = parts.layer_types(b)
    return _build(b, kinds, {kind: _olmo3_rope(b, kind) for kind in kinds})


def _build(b: Builder, kinds: list[str], ropes: dict[str, RopeConfig]) -> Decoder:
    config = b.config
    windows = {"full_attention": None, "sliding_attention": config.get("sliding_window")}
    specs = [b.spec(sliding_window=windows[kind]) for kind in kinds]
    has_bias = bool(config["attention_bias"])

    def layer(index: int, prefix: str) -> Layer:
        return PostNormLayer(
            attention=parts.attention(
                b,
                f"{prefix}.self_attn",
                specs[index],
                ropes[kinds[index]],
                rope_key=kinds[index],
                qkv_bias=has_bias,
                out_bias=has_bias,
                has_row_norms=True,
            ),
            attention_out_norm=parts.norm(b, f"{prefix}.post_attention_layernorm"),
            mlp=parts.gated_mlp(b, f"{prefix}.mlp", act=config["hidden_act"]),
            mlp_out_norm=parts.norm(b, f"{prefix}.post_feedforward_layernorm"),
        )

    return parts.decoder(b, specs, layer)


def _olmo3_rope(b: Builder, kind: str) -> RopeConfig:
    """Scaling holds for full layers only; an old file's `rope_theta` too, as transformers reads it."""
    config = b.config
    parameters = dict((config.get("rope_parameters") or {}).get(kind) or {})
    theta = OLMO3_THETA
    if kind == "full_attention":
        parameters.update(config.get("rope_scaling") or {})
        theta = config.get("rope_theta", OLMO3_THETA)
    parameters.setdefault("rope_theta", theta)
    parameters.setdefault("rope_type", parameters.get("type", "default"))
    return rope_of(parameters, config, head_dim=config.head_dim)
