"""What a job is: frozen dataclasses, from flags and a TOML or YAML file, checked once."""

from offgen.config.effective import engine_options, sampling_defaults
from offgen.config.groups import (
    DataConfig,
    DisplayConfig,
    EngineConfig,
    InputConfig,
    ModelConfig,
    OutputConfig,
    PromptConfig,
    SamplingConfig,
)
from offgen.config.job import JobConfig
from offgen.config.values import Allowance, Shard

__all__ = [
    "Allowance",
    "DataConfig",
    "DisplayConfig",
    "EngineConfig",
    "InputConfig",
    "JobConfig",
    "ModelConfig",
    "OutputConfig",
    "PromptConfig",
    "SamplingConfig",
    "Shard",
    "engine_options",
    "sampling_defaults",
]
