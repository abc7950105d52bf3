"""Gemma, Gemma2 and Gemma3 (text): norms of 1 + weight, scaled embeddings, windows and rotations by layer type."""

from __future__ import annotations

from offgen.backends.base import AttentionSpec
from offgen.models import parts
from offgen.models.builder import Builder, NotNative
from offgen.models.layers import Decoder, Layer, PreNormLayer, SandwichLayer
from offgen.models.rope import RopeConfig, rope_config, rope_of

GEMMA_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
GEMMA2_DEFAULTS = {
    **GEMMA_DEFAULTS,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
GEMMA3_DEFAULTS = {
    **GEMMA2_DEFAULTS,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "sliding_window_pattern": 6,
}


def build_gemma(b: Builder) -> Decoder:
    config = b.with_defaults(GEMMA_DEFAULTS)
    _refuse_two_directions(b)
    act = "gelu_pytorch_tanh" if config["hidden_act"] == "gelu" else config["hidden_act"]  # as the releases meant it
    rope = rope_config(config, head_dim=config.head_dim)
    spec, has_bias = b.spec(), bool(config["attention_bias"])

    def layer(index: int, prefix: str) -> Layer:
        return PreNormLayer(
            input_norm=parts.norm(b, f"{prefix}.input_layernorm", plus=1.0),
            attention=parts.attention(b, f"{prefix}.self_attn", spec, rope, qkv_bias=has_bias, out_bias=has_bias),
            mlp_norm=parts.norm(b, f"{prefix}.post_attention_layernorm", plus=1.0),
            mlp=parts.gated_mlp(b, f"{prefix}.mlp", act=act),
        )

    specs = [spec] * config.integer("num_hidden_layers")
    return parts.decoder(b, specs, layer, norm_plus=1.0, embed_scale=config["hidden_size"] ** 0.5)


def build_gemma2(b: Builder) -> Decoder:
    config = b.with_defaults(GEMMA2_DEFAULTS)
    kinds = _kinds(b, pattern=2)
    rope = rope_config(config, head_dim=config.head_dim)
    return _build(b, kinds, dict.fromkeys(kinds, rope), has_head_norms=False)


def build_gemma3(b: Builder) -> Decoder:
    config = b.with_defaults(GEMMA3_DEFAULTS)
    kinds = _kinds(b, pattern=config.integer("sliding_window_pattern"))
    return _build(b, kinds, {kind: _gemma3_rope(b, kind) for kind in kinds}, has_head_norms=True)


def _build(b: Builder, kinds: list[str], ropes: dict[str, RopeConfig], *, has_head_norms: bool) -> Decoder:
    config = b.config
    _refuse_two_directions(b)
    specs = [_spec(b, kind) for kind in kinds]
    has_bias = bool(config["attention_bias"])

    def layer(index: int, prefix: str) -> Layer:
        return SandwichLayer(
            input_norm=parts.norm(b, f"{prefix}.input_layernorm", plus=1.0),
            attention=parts.attention(
                b,
                f"{prefix}.self_attn",
                specs[index],
                ropes[kinds[index]],
                rope_key=kinds[index],
                qkv_bias=has_bias,
                out_bias=has_bias,
                has_head_norms=has_head_norms,
                norm_plus=1.0,
            ),
            attention_out_norm=parts.norm(b, f"{prefix}.post_attention_layernorm", plus=1.0),
            mlp_norm=parts.norm(b, f"{prefix}.pre_feedforward_layernorm", plus=1.0),
            mlp=parts.gated_mlp(b, f"{prefix}.mlp", act=config["hidden_activation"]),
            mlp_out_norm=parts.norm(b, f"{prefix}.post_feedforward_layernorm", plus=1.0),
        )

    return parts.decoder(
        b,
        specs,
        layer,
        norm_plus=1.0,
        embed_scale=config["hidden_size"] ** 0.5,
        logit_cap=config["final_logit_softcapping"],
    )


def _spec(b: Builder, kind: str) -> AttentionSpec:
    return b.spec(
        scale=b.config["query_pre_attn_scalar"] ** -0.5,
        sliding_window=b.config["sliding_window"] if kind == "sliding_attention" else None,
        logit_soft_cap=b.config["attn_logit_softcapping"],
    )


def _kinds(b: Builder, *, pattern: int) -> list[str]:
    """Layer types: as listed, else every `pattern`-th layer is full and the others have a window."""
    if b.config.get("layer_types") is not None:
        return parts.layer_types(b)
    count = b.config.integer("num_hidden_layers")
    return ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(count)]


def _gemma3_rope(b: Builder, kind: str) -> RopeConfig:
    """Full layers rotate by their own base, scaled if asked; windowed ones by a smaller base, unscaled in old files."""
    config = b.config
    parameters = dict((config.get("rope_parameters") or {}).get(kind) or {})
    if kind == "full_attention":
        parameters.update(config.get("rope_scaling") or {})
        parameters.setdefault("rope_theta", config.get("rope_theta", 1_000_000.0))
    else:
        parameters.setdefault("rope_theta", config.get("rope_local_base_freq", 10_000.0))
    parameters.setdefault("rope_type", parameters.get("type", "default"))
    return rope_of(parameters, config, head_dim=config.head_dim)


def _refuse_two_directions(b: Builder) -> None:
    if b.config.get("use_bidirectional_attention"):
        raise NotNative("attention in both directions")
