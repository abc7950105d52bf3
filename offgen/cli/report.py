"""`offgen report`: what a job did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="What `offgen run` was given with -o.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page with charts.")
    ] = None,
) -> None:
    """Say what a job did: throughput, percentiles of queue, TTFT, TPOT and e2e, occupancy and KV over time, errors.

    OUTPUT may be a folder, a single file, or the parent of shards.
    """
    from offgen.cli.console import say
    from offgen.errors import JobError
    from offgen.report import load_report, report_page, summary_text

    loaded = load_report(output)
    if html is not None:
        try:
            html.write_text(report_page(loaded, title=f"offgen report: {output}"), encoding="utf-8")
        except OSError as problem:
            raise JobError(f"{html}: cannot be written: {problem.strerror}") from problem
        say(f"wrote {html}")
    typer.echo(json.dumps(loaded, indent=1) if as_json else summary_text(loaded))
