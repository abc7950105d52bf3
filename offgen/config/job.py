"""What a job is: every option, checked once. Knows names and values; opens nothing but the `@file` of a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from offgen.config.availability import NOT_BUILT, is_built
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
from offgen.config.option import Option, options_of
from offgen.errors import UsageError

Group = TypeVar("Group")


@dataclass(frozen=True, slots=True)
class Given:
    """One value as a user gave it, and where, as messages name it: `--max-tokens`, or `job.toml: max-tokens`."""

    value: Any
    where: str


@dataclass(frozen=True, slots=True)
class JobConfig:
    """One job, as `offgen run` and its config file describe it. Build with `job_config`."""

    input: InputConfig = field(default_factory=InputConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    data: DataConfig = field(default_factory=DataConfig)
    display: DisplayConfig = field(default_factory=DisplayConfig)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, for run.json."""
        return {group.name: group_to_dict(getattr(self, group.name)) for group in fields(self)}


JOB_GROUPS: tuple[type, ...] = (
    InputConfig,
    OutputConfig,
    ModelConfig,
    PromptConfig,
    SamplingConfig,
    EngineConfig,
    DataConfig,
    DisplayConfig,
)
PLAN_GROUPS: tuple[type, ...] = (InputConfig, ModelConfig, PromptConfig, SamplingConfig, EngineConfig, DataConfig)


def job_config(given: Mapping[str, Given], *, needs_output: bool = True) -> JobConfig:
    """Check every given value, and those that must agree with each other. Raises UsageError (what, where, hint)."""
    config = JobConfig(
        input=build(InputConfig, given),
        output=build(OutputConfig, given),
        model=build(ModelConfig, given),
        prompt=build(PromptConfig, given),
        sampling=build(SamplingConfig, given),
        engine=build(EngineConfig, given),
        data=build(DataConfig, given),
        display=build(DisplayConfig, given),
    )
    _check_job(config, needs_output=needs_output)
    return config


def build(group: type[Group], given: Mapping[str, Given]) -> Group:
    """One group from what was given for its options."""
    chosen = {}
    for option in options_of(group):
        if option.name in given:
            chosen[option.name] = _checked(option, given[option.name])
    return group(**chosen)


def _checked(option: Option, given: Given) -> Any:
    if not is_built(option.name, given.value):
        what = given.where if NOT_BUILT[option.name] is None else f"{given.where} {given.value}"
        raise UsageError(f"{what}: not available yet")
    try:
        return option.parse(given.value)
    except ValueError as problem:
        raise UsageError(f"{given.where}: {problem}", hint=_hint(option)) from problem


def _hint(option: Option) -> str | None:
    return None if option.metavar is None else f"{option.flag} {option.metavar}: {option.help}"


def unknown_key(where: str, key: str, known: Mapping[str, Any]) -> UsageError:
    """The error for a name that is no option, with the nearest that is."""
    close = get_close_matches(key, known, n=1)
    return UsageError(f"{where}: `{key}` is not an option", hint=f"did you mean {close[0]}?" if close else None)


def _check_job(config: JobConfig, *, needs_output: bool) -> None:
    """What options must have together."""
    if not config.input.inputs:
        raise UsageError("no INPUT is given", hint="offgen run prompts.jsonl -o out.parquet --model MODEL")
    if needs_output and not config.output.output:
        raise UsageError("no output is given", hint="-o out.parquet, -o folder/, or -o - for JSONL on stdout")
    if not config.model.model:
        raise UsageError("no model is given", hint="--model smollm2-135m-instruct, a folder, or a hub id")
    _check_prompt(config.prompt)
    sampling, engine = config.sampling, config.engine
    if sampling.min_tokens is not None and sampling.min_tokens > (sampling.max_tokens or 512):
        raise UsageError(f"--min-tokens {sampling.min_tokens} is more than --max-tokens {sampling.max_tokens or 512}")
    if engine.max_model_len is not None and (config.prompt.truncate_prompt or 0) >= engine.max_model_len:
        raise UsageError(
            f"--truncate-prompt {config.prompt.truncate_prompt} leaves no room for a token in"
            f" --max-model-len {engine.max_model_len}"
        )
    if engine.num_gpu_blocks_override is not None and engine.kv_cache_memory is not None:
        raise UsageError("--num-gpu-blocks-override and --kv-cache-memory both size the KV cache", hint="give one")


def _check_prompt(prompt: PromptConfig) -> None:
    columns = ("prompt_column", "messages_column", "template", "token_ids_column")
    flags = ["--" + name.replace("_", "-") for name in columns if getattr(prompt, name) is not None]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} both say what the prompt is", hint="give one of them")
    if prompt.token_ids_column is not None and (prompt.chat or prompt.system is not None):
        what = "--chat" if prompt.chat else "--system"
        raise UsageError(f"{what} does not go with --token-ids-column: token ids are taken as they are")
    if prompt.chat is False and prompt.messages_column is not None:
        raise UsageError("--raw does not go with --messages-column: messages need the model's chat template")
    if prompt.chat is False and prompt.system is not None:
        raise UsageError(
            "--system does not go with --raw: a system message needs the model's chat template",
            hint="put the text into --template",
        )


def group_to_dict(group: Any) -> dict[str, Any]:
    """One group, JSON-able."""
    return {one.name: _plain(getattr(group, one.name)) for one in dataclasses.fields(group)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str | dict) else str(value)
