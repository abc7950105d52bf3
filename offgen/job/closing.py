"""How a job ends: what is kept, what is said, which exit code. Holds what is known of the job by then."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offgen.config import JobConfig
from offgen.errors import JobError, OffgenError
from offgen.job.accounting import Glance, OutputTotals, RunFigures, make_report
from offgen.job.display import Display
from offgen.job.files import write_atomically
from offgen.job.interrupts import Stopped
from offgen.job.model_side import ModelSide, Serving
from offgen.report.provenance import commit, peak_rss_bytes, versions
from offgen.stats.engine import EngineStats
from offgen.stats.progress import Progress, Snapshot

if TYPE_CHECKING:
    from offgen.writers import Output, ResumeState
    from offgen.writers.stream import StreamOutput

FINISHED_WITH_ERRORS = 3
GLANCE_INTERVAL_S = 15.0


class JobStopped(OffgenError):
    """A signal stopped the job after a clean flush."""

    label = "stopped"

    def __init__(self, message: str, *, signum: int, hint: str | None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = 128 + signum


class Closing:
    """Told by main street how far the job has come; asked by it for the end."""

    def __init__(self, config: JobConfig, command: str | None) -> None:
        self._config = config
        self._command = command
        self._started_s = time.monotonic()
        self._load_s = 0.0
        self._output: Output | StreamOutput | None = None
        self._state: ResumeState | None = None
        self._model: ModelSide | None = None
        self._engine: Serving | None = None
        self._progress: Progress | None = None
        self._run_s = 0.0
        self._earlier: dict[str, Any] | None = None
        self._glance_due_s = GLANCE_INTERVAL_S
        self._commit = commit()

    def opened(self, output: Output | StreamOutput, state: ResumeState, model: ModelSide) -> None:
        """The output is locked and its journal read."""
        self._output, self._state, self._model = output, state, model
        self._earlier = _read_report(output.state_dir)

    def loaded(self, engine: Serving, load_s: float) -> None:
        self._engine, self._load_s = engine, load_s

    def running(self, progress: Progress) -> None:
        self._progress = progress

    def ran(self) -> None:
        """The last completion is in, or the loop has ended otherwise."""
        if self._progress is not None:
            self._run_s = time.monotonic() - self._progress.started_s

    def glance(self, snapshot: Snapshot) -> None:
        """Keep a report of the run so far, now and then: what a kill leaves for the sums and for `offgen report`."""
        if self._output is None or snapshot.elapsed_s < self._glance_due_s:
            return
        self._glance_due_s = snapshot.elapsed_s + GLANCE_INTERVAL_S
        self.ran()
        so_far = Glance.of(snapshot, self._earlier or {})
        self._output.write_report(self._report(so_far, status="running"))

    # ends

    def finished(self, display: Display) -> int:
        """Commit everything, write and show the report."""
        assert self._output is not None
        totals = self._output.finish(None)
        report = self._report(totals, status="finished")
        self._keep(report)
        display.summary(report)
        return exit_code(self._config, failed=totals.num_error_rows, total=totals.num_input_rows)

    def already_done(self, display: Display) -> int:
        """Nothing is left to do; say so, and end as the run that finished it."""
        assert self._state is not None
        display.note(f"{self._config.output.output}: already done, {self._state.num_done_rows:,} rows")
        if self._earlier is not None:
            display.summary(self._earlier)
            self._copy_report(self._earlier)
        return exit_code(self._config, failed=self._state.num_done_errors, total=self._state.num_done_rows)

    def broken_off(self) -> None:
        """The run ends early: flush, and keep what it took, so that the sums over runs stay true."""
        if self._output is None:
            return
        self._output.close()
        if self._engine is None:
            return
        self.ran()
        with contextlib.suppress(Exception):  # what ended the run is what must be told, not that its report failed too
            self._keep(self._report(self._output.totals(), status="stopped"))

    def stopped(self, stopped: Stopped) -> JobStopped:
        """The error that ends the command after a signal."""
        name = signal.Signals(stopped.signum).name
        return JobStopped(f"by {name}; {self._safe()}", signum=stopped.signum, hint=self._resume_hint())

    def failed(self, message: str, hint: str | None = None) -> JobError:
        """The error that ends the command when the job cannot go on."""
        resume = self._resume_hint()
        hints = [one for one in (hint, resume) if one]
        return JobError(f"{message}\n{self._safe()}" if resume else message, hint="\nhint: ".join(hints) or None)

    # parts

    def _safe(self) -> str:
        if self._state is None:
            return "nothing was written"
        done = self._state.num_done_rows if self._progress is None else self._progress.rows_done
        total = None if self._progress is None else self._progress.rows_total
        of = "" if total is None else f" of {total:,}"
        where = "were written" if self._output is not None and self._output.state_dir is None else "are safe on disk"
        return f"{done:,}{of} rows are finished and {where}"

    def _resume_hint(self) -> str | None:
        if self._output is None or self._output.state_dir is None:
            return None
        command = "" if self._command is None else f":\n  {self._command}"
        return f"the same command goes on from here{command}"

    def _report(self, totals: OutputTotals, *, status: str) -> dict[str, Any]:
        progress = self._progress or Progress(EngineStats(), self._started_s)
        run = RunFigures(
            load_s=self._load_s,
            run_s=self._run_s,
            wall_s=time.monotonic() - self._started_s,
            stats=progress.stats,
            timeline=progress.timeline,
        )
        report = make_report(totals, run, self._earlier, {"status": status, **self._about()})
        if self._state is not None:
            report["runs"] = self._state.run_count + 1  # counts those too that left no report
        return report

    def _about(self) -> dict[str, Any]:
        described = dict(self._engine.describe()) if self._engine is not None else {}
        return {
            "model": self._model.name if self._model is not None else self._config.model.model,
            "output": self._config.output.output,
            "device": described.pop("device", None),
            "dtype": described.pop("dtype", None),
            "peak_rss_bytes": peak_rss_bytes(),
            "peak_device_bytes": described.pop("peak_device_bytes", None),
            "engine": described,
            "versions": versions(),
            "commit": self._commit,
        }

    def _keep(self, report: dict[str, Any]) -> None:
        assert self._output is not None
        if self._output.state_dir is not None:
            self._output.write_report(report)
        self._copy_report(report)

    def _copy_report(self, report: Mapping[str, Any]) -> None:
        path = self._config.data.report
        if path is not None:
            write_atomically(path, json.dumps(report, indent=1, allow_nan=False) + "\n")


def exit_code(config: JobConfig, *, failed: int, total: int) -> int:
    """0, or 3 when more rows failed than `--allow-errors` covers."""
    return 0 if failed == 0 or config.data.allow_errors.covers(failed, total) else FINISHED_WITH_ERRORS


def abandon(output: Output | StreamOutput) -> None:
    """Take back what `start` made of a new output, when the command turns out to be wrong after all."""
    state_dir = output.state_dir
    if state_dir is None:
        return
    output.close()
    shutil.rmtree(state_dir, ignore_errors=True)
    folder = state_dir.parent
    if state_dir.name == "_offgen" and not any(folder.iterdir()):
        folder.rmdir()


def _read_report(state_dir: Path | None) -> dict[str, Any] | None:
    if state_dir is None:
        return None
    try:
        loaded = json.loads((state_dir / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None
