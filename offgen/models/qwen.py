"""Qwen2 (biases on q, k, v) and Qwen3 (norms on the heads of q and k); windows by layer type."""

from __future__ import annotations

from offgen.models import parts
from offgen.models.builder import Builder
from offgen.models.layers import Decoder, Layer, PreNormLayer
from offgen.models.rope import rope_config

QWEN2_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN3_DEFAULTS = {**QWEN2_DEFAULTS, "head_dim": 128, "attention_bias": False}


def build_qwen2(b: Builder) -> Decoder:
    b.with_defaults(QWEN2_DEFAULTS)
    return _build(b, qkv_bias=True, out_bias=False, has_head_norms=False)


def build_qwen3(b: Builder) -> Decoder:
    b.with_defaults(QWEN3_DEFAULTS)
    has_bias = bool(b.config["attention_bias"])
    return _build(b, qkv_bias=has_bias, out_bias=has_bias, has_head_norms=True)


def _build(b: Builder, *, qkv_bias: bool, out_bias: bool, has_head_norms: bool) -> Decoder:
    config = b.config
    rope = rope_config(config, head_dim=config.head_dim)
    specs = [b.spec(sliding_window=window) for window in _windows(b)]

    def layer(index: int, prefix: str) -> Layer:
        return PreNormLayer(
            input_norm=parts.norm(b, f"{prefix}.input_layernorm"),
            attention=parts.attention(
                b,
                f"{prefix}.self_attn",
                specs[index],
                rope,
                qkv_bias=qkv_bias,
                out_bias=out_bias,
                has_head_norms=has_head_norms,
            ),
            mlp_norm=parts.norm(b, f"{prefix}.post_attention_layernorm"),
            mlp=parts.gated_mlp(b, f"{prefix}.mlp", act=config["hidden_act"]),
        )

    return parts.decoder(b, specs, layer)


def _windows(b: Builder) -> list[int | None]:
    """Each layer's window: by `layer_types`, else all layers from `max_window_layers` on; none without the flag."""
    config = b.config
    window = config["sliding_window"] if config["use_sliding_window"] else None
    count = config.integer("num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        return [window if index >= config["max_window_layers"] else None for index in range(count)]
    return [window if kind == "sliding_attention" else None for kind in parts.layer_types(b)]
