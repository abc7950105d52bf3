"""Any other causal LM, through transformers' attention interface."""

from __future__ import annotations

from pathlib import Path

from offgen.backends.base import Backend
from offgen.errors import UsageError
from offgen.models.base import Model
from offgen.models.config import ModelConfig, read_config


def load(folder: Path, backend: Backend, *, load_format: str, max_model_len: int | None) -> Model:
    raise UsageError(f"{read_config(folder).architecture}: not available yet")


def describe(folder: Path) -> ModelConfig:
    raise UsageError(f"{read_config(folder).architecture}: not available yet")
