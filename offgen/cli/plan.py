"""`offgen plan`: what a job would do and cost, before any weights load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from offgen.cli.options import JOB_FILE, given_options, takes_options
from offgen.config.job import JOB_GROUPS, PLAN_GROUPS, job_config

# of the options for data, those that say which rows there are
NOT_PLANNED = ("overwrite", "resume", "retry_errors", "allow_errors", "max_errors", "flush_interval", "report")


@takes_options(PLAN_GROUPS, without=NOT_PLANNED)
def plan(
    config: Path | None = JOB_FILE,
    cost_model: Annotated[
        Path | None, typer.Option("--cost-model", metavar="FILE", help="What a step costs (default: measured).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    **flags: Any,
) -> None:
    """Say what a job would do and cost: rows, prompt tokens, rows that will not fit, memory, time with an interval.

    Takes the options of `offgen run` and its job file.
    """
    job = job_config(given_options(flags, PLAN_GROUPS, config, file_groups=JOB_GROUPS), needs_output=False)
    from offgen.errors import UsageError
    from offgen.job.plan import plan_job
    from offgen.report.outlook import outlook_text
    from offgen.scheduling.cost_model import CostModel

    cost = None
    if cost_model is not None:
        try:
            cost = CostModel.from_json(cost_model.read_text(encoding="utf-8"), where=str(cost_model))
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"{cost_model}: cannot be read: {problem}") from problem
    planned = plan_job(job, cost=cost)
    typer.echo(json.dumps(planned, indent=1) if as_json else outlook_text(planned))
