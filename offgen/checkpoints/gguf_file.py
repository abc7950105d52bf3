"""A .gguf file to a folder in Hugging Face layout: configuration, weights, tokenizer, chat template.

Values keep their precision: quantized tensors are unpacked to float32, the others stay as stored.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from offgen.checkpoints.cache import made_once
from offgen.checkpoints.checkpoint import hash_sampled
from offgen.errors import UsageError

CONVERTER_VERSION = 1  # part of the cache key: count up when the converted folder would come out different


class GGUFFile:
    """Metadata by key, and the tensors as gguf.GGUFReader gives them."""

    def __init__(self, path: Path) -> None:
        import gguf

        self.path = path
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:  # the reader raises whatever numpy does on a torn file
            raise UsageError(
                f"{path}: not a whole GGUF file: {error}", hint="the download may be incomplete"
            ) from error
        self._fields = reader.fields
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        if self.get("split.count", 1) > 1:
            raise UsageError(f"{path}: one part of a split GGUF", hint="merge it first: llama-gguf-split --merge")

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        if key not in self._fields:
            raise UsageError(f"{self.path}: its metadata lacks `{key}`")
        return self.get(key)

    def keys(self) -> list[str]:
        return list(self._fields)

    @property
    def architecture(self) -> str:
        return str(self.require("general.architecture"))

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """`llama.context_length` for `context_length`."""
        return self.get(f"{self.architecture}.{key}", default)

    @property
    def num_tokens(self) -> int:
        """Rows of the embedding: what the vocabulary is to the model."""
        embedding = self.tensors.get("token_embd.weight")
        if embedding is None:
            raise UsageError(f"{self.path}: no tensor `token_embd.weight`")
        return int(embedding.shape[1])


def convert(path: Path, cache: Path) -> Path:
    """The converted folder, made in `cache` at the first call and found by content at the next, by many at once too.

    Raises UsageError for an architecture, tensor or tokenizer that cannot be converted exactly.
    """
    key = hashlib.sha256(
        f"{CONVERTER_VERSION}:{hash_sampled(path, whole_up_to=256 * 1024 * 1024)}".encode()
    ).hexdigest()
    return made_once(cache / "gguf" / key[:32], lambda folder: _write(path, folder))


def _write(path: Path, folder: Path) -> None:
    from offgen.checkpoints.gguf_config import hf_config
    from offgen.checkpoints.gguf_tokenizer import UnknownTokenizerError, write_tokenizer
    from offgen.checkpoints.gguf_weights import write_weights

    file = GGUFFile(path)
    config = hf_config(file)
    try:
        write_tokenizer(file, folder)
    except UnknownTokenizerError as error:
        # the weights serve all the same with --tokenizer; without it this text is the refusal
        (folder / "tokenizer.refused").write_text(str(error), encoding="utf-8")
    write_weights(file, config, folder / "model.safetensors")
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(file))


def _generation_config(file: GGUFFile) -> dict[str, Any]:
    ends = {file.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
    values: dict[str, Any] = {"eos_token_id": sorted(int(end) for end in ends)}
    for name, key in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        value = file.get(f"tokenizer.ggml.{key}_token_id")
        if value is not None:
            values[name] = int(value)
    return values


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")
