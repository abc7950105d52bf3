"""One job in one process, from rows to committed shards. `run_job` is main street."""

from offgen.job.street import run_job

__all__ = ["run_job"]
