"""A folder to a transformers module: which class, with which weights, how long a context. Knows no attention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from offgen.backends.base import AttentionSpec, Backend
from offgen.errors import UsageError
from offgen.models.config import ModelConfig, eos_token_ids, read_json
from offgen.models.paged_interface import DISCOVER
from offgen.models.rope import RopeConfig, frequencies
from offgen.models.weights import open_checkpoint

CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "max_target_positions",
)
# names in `layer_types` for layers that keep keys and values and nothing else
ATTENTION_KINDS = (None, "full_attention", "sliding_attention", "chunked_attention", "attention")
UNKNOWN_CONTEXT = 2048  # a model that names no limit: what training usually saw


def read_class(folder: Path) -> tuple[Any, Any]:
    """(model class, config) of config.json. UsageError for what is no causal LM, or keeps other state than KV."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    values = read_json(folder / "config.json")
    named = (values.get("architectures") or [""])[0]
    with quiet():
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            kind = values.get("model_type")
            why = (
                "it needs code from its repository, which is never run" if "auto_map" in values else _first_line(error)
            )
            raise UsageError(f"{folder / 'config.json'}: model_type `{kind}` cannot be loaded: {why}") from error
    try:
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise UsageError(f"{named or config.model_type}: not a causal language model of transformers") from None
    if named and named != model_class.__name__ and not _is_same_model(named, model_class):
        raise UsageError(
            f"{named}: not a causal language model; for `{config.model_type}` that is {model_class.__name__}",
            hint="config.json names another head than generation needs",
        )
    _refuse_by_kind(model_class, config, named or model_class.__name__)
    return model_class, config


def _is_same_model(named: str, model_class: Any) -> bool:
    return named.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))


def _refuse_by_kind(model_class: Any, config: Any, name: str) -> None:
    """What no weights need be read for."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ()) | set(getattr(text, "layers_block_type", None) or ())
    others = sorted(str(kind) for kind in kinds if kind not in ATTENTION_KINDS)
    if others:
        raise UsageError(
            f"{name}: has layers of kind `{others[0]}`, whose state is not supported beside keys and values"
        )
    # a class for hybrids may hold a model of attention layers only
    if getattr(model_class, "_is_stateful", False) and not kinds:
        raise UsageError(f"{name}: keeps a recurrent state beside keys and values, which is not supported")
    if getattr(config, "is_encoder_decoder", False) and not getattr(config, "is_decoder", False):
        raise UsageError(f"{name}: an encoder-decoder model, which is not supported")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """transformers' logging and progress bars off: what matters is raised."""
    from transformers.utils import logging

    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


def build_empty(model_class: Any, config: Any) -> Any:
    """The module on the meta device: shapes without storage."""
    with quiet(), torch.device("meta"):
        try:
            # in bfloat16, because the grouped products of experts have no other form without storage
            return model_class._from_config(config, attn_implementation=DISCOVER, dtype=torch.bfloat16).eval()
        except Exception as error:
            raise _not_loaded(None, model_class, error) from error


def load_weights(model_class: Any, folder: Path, config: Any, backend: Backend, *, load_format: str) -> Any:
    """The module in the backend's dtype. UsageError for a tensor that is missing, misshapen or unused."""
    with quiet():
        if load_format == "dummy":
            torch.manual_seed(0)
            try:
                with backend.device:
                    module = model_class._from_config(config, attn_implementation=DISCOVER, dtype=backend.dtype)
            except Exception as error:
                raise _not_loaded(folder, model_class, error) from error
            return module.to(backend.device).eval()
        open_checkpoint(folder)  # every named file is there and whole
        try:
            module, info = model_class.from_pretrained(
                folder,
                config=config,
                dtype=backend.dtype,
                attn_implementation=DISCOVER,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in the info, and raised below
            )
        except Exception as error:
            raise _not_loaded(folder, model_class, error) from error
    for fault, words in (
        ("missing_keys", "missing from the weights"),
        ("mismatched_keys", "of another shape than config.json asks for"),
        ("unexpected_keys", "in the weights, and the architecture has no use for that"),
    ):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info[fault])
        if names:
            shown = ", ".join(f"`{name}`" for name in names[:3]) + (", …" if len(names) > 3 else "")
            raise UsageError(f"{folder}: {len(names)} tensors ({shown}) {words}")
    return module.to(backend.device).eval()


def _not_loaded(folder: Path | None, model_class: Any, error: Exception) -> UsageError:
    if DISCOVER in str(error) or "attn_implementation" in str(error):
        return UsageError(
            f"{model_class.__name__}: has attention of its own, not transformers' attention interface, "
            "which is not supported"
        )
    return UsageError(f"{folder or model_class.__name__}: transformers cannot load it: {_first_line(error)}")


def context_limit(config: Any) -> tuple[int, str | None]:
    """The longest exact context, and why it ends there if rotation is the reason."""
    text = config.get_text_config(decoder=True)
    found = [getattr(text, key, None) for key in CONTEXT_KEYS]
    limit = next((int(value) for value in found if isinstance(value, int) and value > 0), UNKNOWN_CONTEXT)
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for values in nested:
        kind = values.get("rope_type")
        original = values.get("original_max_position_embeddings")
        if kind == "longrope" and original and int(original) < limit:
            return int(original), f"longrope rotates rows of up to {original} tokens by other factors than longer rows"
        if kind == "dynamic":
            return limit, f"dynamic rope changes its frequencies with every token beyond {limit}"
    return limit, None


def fix_rope(module: Any, wanted: int, limit: int, reason: str | None) -> None:
    """Take the choice of frequencies by the longest row of a batch out of the module: one choice for all rows."""
    if reason is None:
        return
    for part in module.modules():
        kind = getattr(part, "rope_type", None)
        if kind not in ("dynamic", "longrope"):
            continue
        if wanted > limit:
            if kind == "dynamic":
                raise UsageError(
                    f"a context of {wanted} tokens is not available: {reason}", hint=f"--max-model-len {limit}"
                )
            rope = RopeConfig(
                part.config.rope_parameters, 2 * part.inv_freq.numel(), part.config.max_position_embeddings
            )
            part.inv_freq.copy_(frequencies(rope, length=wanted).inv_freq)
        part.rope_type = "default"


def specs_by_config(config: Any) -> list[AttentionSpec]:
    """One spec per layer as the usual names in config.json say: for a memory forecast, never for computing."""
    text = config.get_text_config(decoder=True)
    heads = int(text.num_attention_heads)
    head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * int(text.num_hidden_layers)
    window = getattr(text, "sliding_window", None)
    return [
        AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, window if kind == "sliding_attention" else None)
        for kind in kinds
    ]


def shape_of(
    folder: Path, model_class: Any, config: Any, specs: list[AttentionSpec], limit: int, reason: str | None
) -> ModelConfig:
    text = config.get_text_config(decoder=True)
    return ModelConfig(
        architecture=model_class.__name__,
        vocab_size=int(text.vocab_size),
        num_layers=len(specs),
        hidden_size=int(text.hidden_size),
        max_position_embeddings=limit,
        eos_token_ids=eos_token_ids(folder, {"eos_token_id": getattr(config, "eos_token_id", None)}),
        attention=tuple(specs),
        implementation="transformers",
        context_limit_reason=reason,
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
