"""What makes a job the same job, and what run.json and the screen tell of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from offgen.config import JobConfig
from offgen.config.job import group_to_dict
from offgen.job.model_side import ModelSide
from offgen.report.provenance import commit, versions
from offgen.sampling.params import SamplingParams

MAX_SHOWN = 1000  # characters of the first prompt on the screen; run.json has all of it
ALWAYS_SHOWN = ("max_tokens", "temperature", "seed")


def fingerprint(config: JobConfig, model: ModelSide, input_fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change between a job's runs: input, model, prompt, sampling. The writer adds its own options."""
    return {
        "input": dict(input_fingerprint),
        "model": model.fingerprint,
        "prompt": group_to_dict(config.prompt),
        "sampling": asdict(model.defaults),
    }


def run_record(config: JobConfig, model: ModelSide, prompt: str | None) -> dict[str, Any]:
    """What run.json tells people: the options, what they came to, and with what it ran."""
    return {
        "config": config.to_dict(),
        "model": model.name,
        "sampling": asdict(model.defaults),
        "prompts": model.prompt_kind,
        "first_prompt": prompt,
        "versions": versions(),
        "commit": commit(),
    }


def announcement(model: ModelSide, prompt: str | None) -> str:
    """What a person sees before the model loads: the choices that were made for them."""
    lines = [f"model: {model.name}", sampling_note(model.defaults), f"prompts: {model.prompt_kind}"]
    return "\n".join(lines if prompt is None else [*lines, prompt_note(prompt)])


def sampling_note(params: SamplingParams) -> str:
    """The sampling parameters that apply, without the neutral ones."""
    neutral = asdict(SamplingParams())
    said = [
        f"{name} {_shown(value)}"
        for name, value in asdict(params).items()
        if name in ALWAYS_SHOWN or value != neutral[name]
    ]
    return f"sampling: {'greedy' if params.is_greedy else 'random'}, {', '.join(said)}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return repr(list(value)) if isinstance(value, tuple) else str(value)


def prompt_note(prompt: str) -> str:
    """The first rendered prompt, as the screen shows it."""
    shown = prompt if len(prompt) <= MAX_SHOWN else prompt[: MAX_SHOWN - 1] + "…"
    return "\n".join(["first prompt:", *(f"  | {line}" for line in shown.splitlines() or [""])])


def engine_note(described: Mapping[str, Any]) -> str:
    """What the engine runs with, as the screen shows it: given or chosen, and then why."""
    lines = [f"engine: {described['device']} {described['dtype']}"]
    if "num_blocks" in described:
        lines[0] += (
            f"; {described['max_num_seqs']:,} rows at once, {described['max_num_batched_tokens']:,} tokens a step,"
            f" context {described['max_model_len']:,}, KV {described['num_blocks']:,} blocks of"
            f" {described['block_size']} tokens ({described['kv_bytes'] / 2**30:.2f} GiB)"
        )
    chosen = [f"  {name.replace('_', '-')}: {reason}" for name, reason in described.get("why", {}).items()]
    return "\n".join([*lines, *chosen])
