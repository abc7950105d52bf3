"""SmolLM3: Llama with every fourth layer unrotated, and a window there if asked."""

from __future__ import annotations

from offgen.models import parts
from offgen.models.builder import Builder, NotNative
from offgen.models.layers import Decoder, Layer, PreNormLayer
from offgen.models.rope import rope_config

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "no_rope_layer_interval": 4,
    "attention_bias": False,
    "mlp_bias": False,
}


def build(b: Builder) -> Decoder:
    config = b.with_defaults(DEFAULTS)
    count = config.integer("num_hidden_layers")
    rotates = config.get("no_rope_layers")  # 1 where a layer does rotate, in spite of the name
    if rotates is None:
        rotates = [int((index + 1) % config["no_rope_layer_interval"] != 0) for index in range(count)]
    window = config["sliding_window"] if config["use_sliding_window"] else None
    if config.get("layer_types") is None:
        windows = [None if rotates[index] else window for index in range(count)]
    elif window is None and "sliding_attention" in config["layer_types"]:
        raise NotNative("a window in `layer_types` that `use_sliding_window` turns off")
    else:
        windows = [window if kind == "sliding_attention" else None for kind in parts.layer_types(b)]
    specs = [b.spec(sliding_window=size) for size in windows]
    rope = rope_config(config, head_dim=config.head_dim, default_theta=2_000_000.0)
    attention_bias, mlp_bias = bool(config["attention_bias"]), bool(config["mlp_bias"])

    def layer(index: int, prefix: str) -> Layer:
        return PreNormLayer(
            input_norm=parts.norm(b, f"{prefix}.input_layernorm"),
            attention=parts.attention(
                b,
                f"{prefix}.self_attn",
                specs[index],
                rope if rotates[index] else None,
                rope_key="rotated" if rotates[index] else "still",
                qkv_bias=attention_bias,
                out_bias=attention_bias,
            ),
            mlp_norm=parts.norm(b, f"{prefix}.post_attention_layernorm"),
            mlp=parts.gated_mlp(b, f"{prefix}.mlp", act=config["hidden_act"], has_bias=mlp_bias),
        )

    return parts.decoder(b, specs, layer)
