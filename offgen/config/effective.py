"""What options come to: the engine's options in its own words, and the sampling parameters that apply to a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from offgen.config.groups import EngineConfig, SamplingConfig
from offgen.engine.options import EngineOptions
from offgen.errors import UsageError
from offgen.sampling.params import SamplingParams, from_dict


def sampling_defaults(sampling: SamplingConfig, model_defaults: Mapping[str, Any]) -> SamplingParams:
    """What applies to a row: what the user said, else what the model's generation_config.json says, else neutral."""
    names = [one.name for one in fields(SamplingParams) if hasattr(sampling, one.name)]
    said = {name: getattr(sampling, name) for name in names if getattr(sampling, name) is not None}
    try:
        return from_dict({**model_defaults, **said}, defaults=SamplingParams())
    except ValueError as problem:
        raise UsageError(f"sampling parameters: {problem}", hint="offgen run --help") from problem


def engine_options(engine: EngineConfig) -> EngineOptions:
    """The engine's options as its own room names them."""
    renamed = {"num_gpu_blocks_override": "num_blocks", "kv_cache_memory": "kv_cache_memory_bytes"}
    named = {renamed.get(one.name, one.name): getattr(engine, one.name) for one in fields(engine) if one.name != "lora"}
    return EngineOptions(**named)
