"""What a model is, read from a Hugging Face folder's JSON. Knows no tensor and no library's config class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offgen.backends.base import AttentionSpec
from offgen.errors import UsageError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model, as the engine sizes memory and checks rows by it.

    max_position_embeddings   the longest context in which the model is exact; `--max-model-len` may ask for more
                              only where `context_limit_reason` is None
    attention                 one spec per KV cache, in layer order (a layer without keys of its own has none)
    notes                     what a user should read about this checkpoint before it runs
    """

    architecture: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    max_position_embeddings: int
    eos_token_ids: frozenset[int]
    attention: tuple[AttentionSpec, ...]
    implementation: str = "native"  # native, transformers
    context_limit_reason: str | None = None
    notes: tuple[str, ...] = ()


class HFConfig(Mapping[str, Any]):
    """config.json, with a family's defaults for what the file leaves out."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._values = {**(defaults or {}), **values}

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise UsageError(f"config.json: `{key}` is missing") from None

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` when it is absent (null counts as present, as in the file)."""
        return self._values.get(key, default)

    def with_defaults(self, defaults: Mapping[str, Any]) -> HFConfig:
        return HFConfig(self._values, defaults)

    def integer(self, key: str) -> int:
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"config.json: `{key}` must be an integer, not {value!r}")
        return value

    @property
    def num_heads(self) -> int:
        return self.integer("num_attention_heads")

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads if self.get("num_key_value_heads") is None else self.integer("num_key_value_heads")

    @property
    def head_dim(self) -> int:
        if self.get("head_dim") is not None:
            return self.integer("head_dim")
        return self.integer("hidden_size") // self.num_heads

    @property
    def architecture(self) -> str:
        names = self.get("architectures") or []
        return str(names[0]) if names else ""

    @property
    def is_tied(self) -> bool:
        return bool(self.get("tie_word_embeddings", False))


def read_config(folder: Path) -> HFConfig:
    """config.json of a Hugging Face folder. Raises UsageError naming the file that is missing or broken."""
    return HFConfig(read_json(folder / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such file", hint="a model folder holds config.json, tokenizer files and *.safetensors"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expected a JSON object")
    return values


def eos_token_ids(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Every id that config.json or generation_config.json (if there is one) says ends a text."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    return frozenset(_ids(config.get("eos_token_id"))) | frozenset(_ids(generation.get("eos_token_id")))


def _ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return [int(one) for one in value] if isinstance(value, list) else [int(value)]


def checkpoint_dtype(folder: Path) -> str:
    """The dtype that config.json says the weights were trained in: `float32`, `bfloat16` or `float16`."""
    config = read_json(folder / "config.json")
    text = config.get("text_config") or {}
    for values in (config, text):
        name = values.get("dtype") or values.get("torch_dtype")
        if isinstance(name, str):
            return name.removeprefix("torch.")
    return "float32"
