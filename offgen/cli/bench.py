"""`offgen bench`: the engine on this machine. JSON lines on stdout, tables on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from offgen.cli.options import given_options, takes_options
from offgen.config import EngineConfig, ModelConfig

MODES = ("static", "dynamic", "continuous")


@takes_options((ModelConfig, EngineConfig), without=("batching", "generation_config"))
def bench(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD...]",
            help="JSON-lines files (prompt_token_ids or prompt_tokens, and max_tokens), or distributions as"
            " `offgen simulate` takes them (default: a heavy-tailed mix).",
        ),
    ] = None,
    batching: Annotated[
        str,
        typer.Option("--batching", metavar="MODES", help="static, dynamic, continuous, several with commas, or all."),
    ] = "all",
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a step goes.")] = False,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each.")] = 1,
    seed: Annotated[int, typer.Option("--workload-seed", help="Of the distributions.")] = 0,
    cost_model: Annotated[
        Path | None,
        typer.Option("--cost-model", metavar="FILE", help="Write the last run's cost model, for `offgen simulate`."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="JSON lines only.")] = False,
    **flags: Any,
) -> None:
    """Measure the real engine: static, dynamic and continuous batching side by side, with the bubble ratio of each."""
    from offgen.cli.console import say
    from offgen.config.job import build
    from offgen.errors import UsageError

    given = given_options(flags, (ModelConfig, EngineConfig), None, file_groups=())
    model, engine = build(ModelConfig, given), build(EngineConfig, given)
    if not model.model:
        raise UsageError("no model is given", hint="--model smollm2-135m-instruct, a folder, or a hub id")
    modes = MODES if batching == "all" else tuple(batching.split(","))
    for mode in modes:
        if mode not in MODES:
            raise UsageError(f"--batching: `{mode}` is not one of {', '.join(MODES)}, or all")

    from offgen import bench as street

    config = street.BenchConfig(
        model, engine, tuple(workload or [street.DEFAULT_WORKLOAD]), modes, repeats, seed, profile
    )
    records = []
    for record in street.bench(config):
        records.append(record)
        typer.echo(json.dumps(record))
        if profile and not quiet:
            say(street.profile(record) + "\n")
    if cost_model is not None:
        cost_model.write_text(json.dumps(records[-1]["cost_model"], indent=1) + "\n", encoding="utf-8")
    if not quiet:
        say(street.comparison(records))
