"""Main street: rows -> prompts -> completions -> committed shards, in one process. Knows the rooms; no detail of any.

Everything that can be wrong with the command is found before the model loads and before anything is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offgen.config import Allowance, JobConfig
from offgen.errors import JobError, UsageError
from offgen.job.closing import Closing, abandon
from offgen.job.display import Display, Silent
from offgen.job.engine_warnings import EngineWarnings
from offgen.job.files import check_place
from offgen.job.heartbeat import Heartbeat
from offgen.job.identity import announcement, engine_note, fingerprint, prompt_note, run_record
from offgen.job.interrupts import Interrupts, Stopped
from offgen.job.metrics import Metrics, open_metrics
from offgen.job.model_side import ModelSide, Serving, choose_model, prepare_model
from offgen.job.prefetch import Prefetch
from offgen.job.rows import count_ahead, first_row, input_of, is_live, output_of, selection_of
from offgen.stats.progress import Progress

if TYPE_CHECKING:
    from offgen.readers import Input
    from offgen.records import Prompt, Row
    from offgen.writers import Output, ResumeState
    from offgen.writers.stream import StreamOutput

ENOUGH_ROWS = 100  # of which a share of errors is taken before the number of rows is known


def run_job(config: JobConfig, display: Display | None = None, *, command: str | None = None) -> int:
    """Do one job, from rows to committed shards, and return its exit code.

    command   what a person types to resume it, for messages

    Raises UsageError with nothing written; JobError or JobStopped with everything that had finished safe on disk.
    """
    closing = Closing(config, command)
    with Interrupts() as interrupts:
        try:
            return _walk(config, display or Silent(), closing, interrupts)
        except Stopped as stopped:
            raise closing.stopped(stopped) from None
        except (UsageError, BrokenPipeError):
            raise
        except JobError as error:
            if error.exit_code != JobError.exit_code:
                raise  # the reader of stdout went away: nothing to say
            raise closing.failed(error.message, error.hint) from error
        except Exception as problem:
            raise closing.failed(f"{type(problem).__name__}: {problem}") from problem


@dataclass(frozen=True, slots=True)
class Checked:
    """A job of which everything is known that can be, before its model loads and before anything is written."""

    rows: Input
    model: ModelSide
    output: Output | StreamOutput
    prompt: str | None  # the first one, as the model will read it
    identity: dict[str, Any]
    metrics: Metrics


def _check(config: JobConfig) -> Checked:
    try:
        rows = input_of(config)
        prepare_model(config)
        model = choose_model(config, rows)
        output = output_of(config, model, rows)
        first = first_row(rows, model, config)
        prompt = None if first is None else model.renderer.describe(first)
        identity = fingerprint(config, model, rows.fingerprint())
    except JobError as error:
        raise UsageError(error.message, hint=error.hint) from error  # an input that cannot be read from its start
    check_place("--report", config.data.report)
    return Checked(rows, model, output, prompt, identity, open_metrics(config.display))


def _walk(config: JobConfig, display: Display, closing: Closing, interrupts: Interrupts) -> int:
    with interrupts.raising():
        job = _check(config)
    model, output, record = job.model, job.output, run_record(config, job.model, job.prompt)
    asked = config.data
    state = output.start(
        fingerprint=job.identity,
        run=record,
        overwrite=asked.overwrite,
        resume=asked.resume,
        retry_errors=asked.retry_errors,
    )
    closing.opened(output, state, model)
    try:
        if state.is_finished:
            return closing.already_done(display)
        display.note(announcement(model, job.prompt))
        for note in model.notes:
            display.warn(note)
        with interrupts.raising():
            engine = _load(model, output, state, closing)
        record["engine"] = engine.describe()  # the writer holds the record, and saves it again at the end
        display.note(engine_note(engine.describe()))
        progress = Progress(engine.stats, time.monotonic(), state.num_done_rows, state.num_done_errors)
        closing.running(progress)
        prompts = Prefetch(_prompts(config, job, display))
        warnings = EngineWarnings(engine.stats, display.warn)
        listeners = [display.show, warnings.show, closing.glance, *job.metrics.listeners]
        with (
            Heartbeat(progress, listeners, on_failure=display.warn),
            interrupts.calling(lambda: _stop(prompts, engine)),
        ):
            display.begin()
            count_ahead(config, job.rows, progress)
            _generate(engine, prompts, output, progress, asked.max_errors)
        closing.ran()
        display.end()
        interrupts.check()
        return closing.finished(display)
    except BaseException:
        closing.broken_off()
        raise
    finally:
        display.end()
        model.renderer.close()
        output.close()
        job.metrics.close()


def _prompts(config: JobConfig, job: Checked, display: Display) -> Iterator[Prompt]:
    """The rows that are not done yet, rendered as they are pulled."""
    undone = job.rows.rows(job.model.needed_columns, selection=selection_of(config), skip=job.output.is_done)
    return _live_prompts(undone, job.model, display) if is_live(config) else job.model.renderer.render(undone)


def _live_prompts(rows: Iterator[Row], model: ModelSide, display: Display) -> Iterator[Prompt]:
    """The rows of a pipe, each as it comes: none is held back for others. The first is shown now that it is there."""
    for place, row in enumerate(rows):
        if place == 0:
            display.note(prompt_note(model.renderer.describe(row)))
        yield from model.renderer.render([row])


def _stop(prefetch: Prefetch, engine: Serving) -> None:
    prefetch.stop()
    engine.stop()


def _load(model: ModelSide, output: Output | StreamOutput, state: ResumeState, closing: Closing) -> Serving:
    started_s = time.monotonic()
    try:
        engine = model.open()
    except UsageError:
        # what only loading could find is wrong usage all the same: a new output is taken back
        if state.run_count == 0:
            abandon(output)
        raise
    closing.loaded(engine, time.monotonic() - started_s)
    return engine


def _generate(
    engine: Serving, prompts: Prefetch, output: Output | StreamOutput, progress: Progress, max_errors: Allowance | None
) -> None:
    """The loop. Ends when the last row is in, or when a signal has stopped the engine."""
    has_told_end = False
    try:
        for completion in engine.generate(prompts):
            output.write(completion)
            failed = completion.error is not None
            progress.count(completion.row.row_id, completion.num_samples, failed=failed)
            if not has_told_end and prompts.is_exhausted:
                has_told_end = True
                _tell_end(prompts, output, progress)
            if failed and max_errors is not None:
                _check_errors(max_errors, progress)
        if prompts.is_exhausted:
            _tell_end(prompts, output, progress)
    finally:
        prompts.close()


def _tell_end(prompts: Prefetch, output: Output | StreamOutput, progress: Progress) -> None:
    """Every selected row has been read: those that were done before, and those that became prompts."""
    progress.rows_total = progress.rows_before + prompts.num_prompts
    output.end_of_input(progress.rows_total)


def _check_errors(most: Allowance, progress: Progress) -> None:
    total = progress.rows_total
    if total is None:
        # a share of an unknown number of rows is taken of those done, once these are enough to say something
        total = progress.rows_done
        if most.percent is not None and total < ENOUGH_ROWS:
            return
    if not most.covers(progress.all_errors, total):
        raise JobError(f"{progress.all_errors:,} rows have failed, which is more than --max-errors {most}")
