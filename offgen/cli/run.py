"""`offgen run`: reads the command line into a JobConfig and walks it down main street."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from offgen.cli.options import JOB_FILE, given_options, takes_options
from offgen.config.job import JOB_GROUPS, job_config


@takes_options(JOB_GROUPS)
def run(config: Path | None = JOB_FILE, **flags: Any) -> int:
    """Turn a dataset of prompts into a dataset of completions.

    The same command again goes on where it stopped.
    Exit codes: 0 done, 1 failed (resumable), 2 wrong usage, 3 done with failed rows.
    """
    job = job_config(given_options(flags, JOB_GROUPS, config, file_groups=JOB_GROUPS))
    from offgen.cli.display import open_display
    from offgen.job import run_job

    return run_job(job, open_display(job), command=shlex.join(["offgen", *sys.argv[1:]]))
