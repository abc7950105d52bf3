"""GGUF metadata to config.json, one function per architecture. Knows names and numbers; knows no tensor values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgen.errors import UsageError

if TYPE_CHECKING:
    from offgen.checkpoints.gguf_file import GGUFFile


def hf_config(file: GGUFFile) -> dict[str, Any]:
    """config.json for the file. UsageError for an architecture that has no entry below."""
    build = ARCHITECTURES.get(file.architecture)
    if build is None:
        raise UsageError(
            f"{file.path}: GGUF architecture `{file.architecture}` is not supported (supported: "
            f"{', '.join(sorted(ARCHITECTURES))})",
            hint="give the model's folder or hub id with safetensors weights instead",
        )
    return {**_common(file), **build(file)}


def _common(file: GGUFFile) -> dict[str, Any]:
    if file.of_architecture("expert_count", 0):
        raise UsageError(
            f"{file.path}: a mixture of experts, which is not read from GGUF",
            hint="give the model's folder or hub id with safetensors weights instead",
        )
    num_heads = int(file.require(f"{file.architecture}.attention.head_count"))
    hidden = int(file.require(f"{file.architecture}.embedding_length"))
    head_dim = int(file.of_architecture("attention.key_length", hidden // num_heads))
    if int(file.of_architecture("attention.value_length", head_dim)) != head_dim:
        raise UsageError(f"{file.path}: keys and values of different size are not supported")
    config = {
        "vocab_size": file.num_tokens,
        "hidden_size": hidden,
        "intermediate_size": int(file.require(f"{file.architecture}.feed_forward_length")),
        "num_hidden_layers": int(file.require(f"{file.architecture}.block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(file.of_architecture("attention.head_count_kv", num_heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(file.require(f"{file.architecture}.context_length")),
        "rms_norm_eps": float(file.require(f"{file.architecture}.attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(file, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "float32",
    }
    for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        value = file.get(f"tokenizer.ggml.{key}_token_id")
        config[name] = None if value is None else int(value)
    return config


def _rope(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    rotated = int(file.of_architecture("rope.dimension_count", head_dim))
    if rotated != head_dim:
        raise UsageError(f"{file.path}: rotates {rotated} of {head_dim} values of a head, which is not read from GGUF")
    theta = float(file.of_architecture("rope.freq_base", 10000.0))
    kind = file.of_architecture("rope.scaling.type", "none")
    factor = float(file.of_architecture("rope.scaling.factor", 1.0) or 1.0)
    context = int(file.require(f"{file.architecture}.context_length"))
    original = int(file.of_architecture("rope.scaling.original_context_length", context))
    if "rope_freqs.weight" in file.tensors:
        # Llama 3.1 and later: the file holds what its scaling divides each frequency by
        stretch = [float(value) for value in file.tensors["rope_freqs.weight"].data]
        return {
            "rope_type": "longrope",
            "rope_theta": theta,
            "short_factor": stretch,
            "long_factor": stretch,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if kind in ("none", None) or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise UsageError(f"{file.path}: rope scaling `{kind}` is not read from GGUF")


def _has(file: GGUFFile, name: str) -> bool:
    return f"blk.0.{name}" in file.tensors


def _llama(file: GGUFFile) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": _has(file, "attn_q.bias"),
        "mlp_bias": _has(file, "ffn_up.bias"),
    }


def _qwen2(file: GGUFFile) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _qwen3(file: GGUFFile) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": _has(file, "attn_q.bias"),
        "use_sliding_window": False,
    }


ARCHITECTURES: dict[str, Callable[[GGUFFile], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}
