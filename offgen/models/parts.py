"""From a builder to parts under the usual names (`model.layers.N.self_attn.q_proj` …). Shared by the families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offgen.backends.base import AttentionSpec, Backend
from offgen.errors import UsageError
from offgen.models.builder import Builder, NotNative
from offgen.models.config import ModelConfig
from offgen.models.layers import Activation, Attention, Decoder, GatedMLP, Layer, Norm
from offgen.models.rope import RopeConfig

EMBEDDING = "model.embed_tokens.weight"


def layer_types(b: Builder) -> list[str]:
    """config.json's `layer_types`, one per layer. NotNative for a kind other than full and sliding attention."""
    kinds = b.config["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != b.config.integer("num_hidden_layers"):
        raise UsageError("config.json: `layer_types` must name one kind for each of `num_hidden_layers`")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise NotNative(f"the layer type `{kind}`")
    return kinds


def activation(backend: Backend, name: str) -> Activation:
    """The gated activation that config.json names. NotNative for one that no backend op serves."""
    if name in ("silu", "swish"):
        return lambda x: backend.silu_and_mul(x)
    if name in ("gelu_pytorch_tanh", "gelu_new"):
        return lambda x: backend.gelu_and_mul(x, "tanh")
    if name == "gelu":
        return lambda x: backend.gelu_and_mul(x, "none")
    raise NotNative(f"the activation `{name}`")


def norm(b: Builder, name: str, *, size: int | None = None, plus: float | None = None) -> Norm:
    size = b.config.integer("hidden_size") if size is None else size
    return Norm(b.backend, b.vector(f"{name}.weight", size, plus=plus), float(b.config["rms_norm_eps"]))


def attention(
    b: Builder,
    prefix: str,
    spec: AttentionSpec,
    rope: RopeConfig | None,
    *,
    rope_key: str = "",
    qkv_bias: bool = False,
    out_bias: bool = False,
    has_head_norms: bool = False,
    has_row_norms: bool = False,
    norm_plus: float | None = None,
) -> Attention:
    hidden = b.config.integer("hidden_size")
    q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    names = [f"{prefix}.{part}_proj" for part in "qkv"]
    row_norms: Sequence[Norm | None] = (None, None)
    if has_row_norms:
        row_norms = (norm(b, f"{prefix}.q_norm", size=q_width), norm(b, f"{prefix}.k_norm", size=kv_width))
    return Attention(
        backend=b.backend,
        qkv=b.linear(names, [q_width, kv_width, kv_width], hidden, has_bias=qkv_bias),
        out=b.linear([f"{prefix}.o_proj"], [hidden], q_width, has_bias=out_bias),
        spec=spec,
        cos_sin=b.rope_table(rope, rope_key),
        q_norm=b.vector(f"{prefix}.q_norm.weight", spec.head_dim, plus=norm_plus) if has_head_norms else None,
        k_norm=b.vector(f"{prefix}.k_norm.weight", spec.head_dim, plus=norm_plus) if has_head_norms else None,
        norm_eps=float(b.config["rms_norm_eps"]),
        q_row_norm=row_norms[0],
        k_row_norm=row_norms[1],
    )


def gated_mlp(b: Builder, prefix: str, *, act: str, has_bias: bool = False) -> GatedMLP:
    hidden, inner = b.config.integer("hidden_size"), b.config.integer("intermediate_size")
    return GatedMLP(
        gate_up=b.linear([f"{prefix}.gate_proj", f"{prefix}.up_proj"], [inner, inner], hidden, has_bias=has_bias),
        down=b.linear([f"{prefix}.down_proj"], [hidden], inner, has_bias=has_bias),
        activation=activation(b.backend, act),
    )


def decoder(
    b: Builder,
    specs: Sequence[AttentionSpec],
    make_layer: Callable[[int, str], Layer],
    *,
    norm_plus: float | None = None,
    embed_scale: float | None = None,
    logit_divisor: float | None = None,
    logit_cap: float | None = None,
) -> Decoder:
    """The stack: make_layer(index, prefix) for each layer, between embedding and head."""
    config = b.config
    vocab, hidden = config.integer("vocab_size"), config.integer("hidden_size")
    embedding = b.embedding(EMBEDDING, vocab, hidden)
    layers = [make_layer(index, f"model.layers.{index}") for index in range(len(specs))]
    final = norm(b, "model.norm", plus=norm_plus)
    head = b.head(EMBEDDING, vocab, hidden)
    limit, reason = min(
        b.context_limits, default=(config.integer("max_position_embeddings"), None), key=lambda at: at[0]
    )
    shape = ModelConfig(
        architecture=config.architecture,
        vocab_size=vocab,
        num_layers=len(layers),
        hidden_size=hidden,
        max_position_embeddings=limit,
        eos_token_ids=frozenset(),
        attention=tuple(specs),
        context_limit_reason=reason,
        notes=tuple(b.notes),
    )
    return Decoder(
        shape, b.backend, embedding, layers, final, head, b.weight_bytes, embed_scale, logit_divisor, logit_cap
    )
