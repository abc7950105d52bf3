"""A folder becomes a model: native if a family serves it, else through transformers. Knows the order of checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch

from offgen.backends.base import Backend
from offgen.errors import UsageError
from offgen.models.base import Model
from offgen.models.builder import Builder, NotNative, ShapeBackend
from offgen.models.config import HFConfig, ModelConfig, eos_token_ids, read_config
from offgen.models.dummy import RandomTensors, ShapeCheck
from offgen.models.layers import Decoder
from offgen.models.registry import NATIVE
from offgen.models.weights import CheckpointFiles, TensorSource, open_checkpoint

FamilyBuilder = Callable[[Builder], Decoder]
IMPLEMENTATIONS = ("auto", "native", "transformers")
# buffers that old checkpoints store and nobody reads
IGNORED = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias")


def load_model(
    folder: Path,
    backend: Backend,
    *,
    load_format: str = "auto",
    model_impl: str = "auto",
    max_model_len: int | None = None,
) -> Model:
    """Build the model of a Hugging Face folder on a backend.

    load_format     `auto` or `safetensors`: the folder's weights; `dummy`: random ones, the same in every run
    model_impl      `native`: this room's own layers; `transformers`: its modules over paged attention; `auto`: native
                    where a family serves the model
    max_model_len   the longest row that will run; None: the model's own context

    Raises UsageError for a file or tensor that is missing, unused or misshapen, and for a model that cannot be served
    exactly.
    """
    if load_format not in ("auto", "safetensors", "gguf", "dummy"):
        raise UsageError(f"--load-format {load_format}: unknown")
    config = read_config(folder)
    build = _native_builder(config, model_impl)
    if build is not None:
        try:
            return _load_native(folder, config, build, backend, load_format=load_format, max_model_len=max_model_len)
        except NotNative as reason:
            if model_impl == "native":
                raise _not_native(config, str(reason)) from None
    from offgen.models.transformers_model import load

    return load(folder, backend, load_format=load_format, max_model_len=max_model_len)


def load_config(folder: Path, *, model_impl: str = "auto") -> ModelConfig:
    """The shape of the model of a folder, from config.json alone: no weights are read."""
    config = read_config(folder)
    build = _native_builder(config, model_impl)
    if build is not None:
        try:
            return _finished(_dry_run(folder, config, build, None, torch.float32), folder, config).config
        except NotNative as reason:
            if model_impl == "native":
                raise _not_native(config, str(reason)) from None
    from offgen.models.transformers_model import describe

    return describe(folder)


def _native_builder(config: HFConfig, model_impl: str) -> FamilyBuilder | None:
    if model_impl not in IMPLEMENTATIONS:
        raise UsageError(f"--model-impl {model_impl}: choose one of {', '.join(IMPLEMENTATIONS)}")
    if model_impl == "transformers":
        return None
    build = NATIVE.get(config.architecture)
    if build is None and model_impl == "native":
        raise _not_native(config, "the architecture")
    return build


def _not_native(config: HFConfig, what: str) -> UsageError:
    return UsageError(
        f"{config.architecture or 'config.json without `architectures`'}: {what} is not served natively",
        hint="--model-impl transformers",
    )


def _dry_run(
    folder: Path, config: HFConfig, build: FamilyBuilder, files: CheckpointFiles | None, dtype: torch.dtype
) -> Decoder:
    """Build against shapes alone: every fault of the weights is found before a byte of them is read."""
    check = ShapeCheck(files)
    model = build(Builder(config, check, cast(Backend, ShapeBackend(dtype))))
    ignored = [name for name in (files.tensors if files else ()) if name.endswith(IGNORED)]
    check.raise_faults(folder, ignored)
    return model


def _load_native(
    folder: Path,
    config: HFConfig,
    build: FamilyBuilder,
    backend: Backend,
    *,
    load_format: str,
    max_model_len: int | None,
) -> Model:
    files = None if load_format == "dummy" else open_checkpoint(folder)
    _dry_run(folder, config, build, files, backend.dtype)
    tensors: TensorSource = RandomTensors() if files is None else files
    model = build(Builder(config, tensors, backend, num_positions=max_model_len))
    return _finished(model, folder, config, notes=[] if files is None else files.notes)


def _finished(model: Decoder, folder: Path, config: HFConfig, notes: Sequence[str] = ()) -> Decoder:
    model.config = dataclasses.replace(
        model.config, eos_token_ids=eos_token_ids(folder, config), notes=(*notes, *model.config.notes)
    )
    return model
