"""The output of one job on disk: takes completions, keeps them safe, commits shards, ends with _SUCCESS or the file.

The engine's thread hands rows to a pump; one thread behind it does all that touches the disk (split_writer.py). This
file knows the order of a job's life: start, rows, end, finish or close.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from offgen.errors import JobError, UsageError
from offgen.records import Completion
from offgen.writers.assemble import assemble
from offgen.writers.commits import CommitLog
from offgen.writers.disk import NO_PLACE, temporary_of
from offgen.writers.lock import OutputLock
from offgen.writers.ownership import check_same_job, check_target, check_visible_file, discard, known_record
from offgen.writers.progress import Progress, ResumeState
from offgen.writers.pump import Pump
from offgen.writers.recovery import Recovery, journalled
from offgen.writers.run_record import RunRecord, plain
from offgen.writers.samples import SampleGate
from offgen.writers.schema import schema_from_text
from offgen.writers.shard import Shop, rewrite_part
from offgen.writers.split_writer import SplitWriter
from offgen.writers.splits import Splits
from offgen.writers.summary import FileSeal, Totals


class Output:
    """Made by `open_output`; nothing is on disk until `start`."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._layout = shop.layout
        self._disk = shop.disk
        self._lock = OutputLock(shop.layout.lock_path, shop.layout.target)
        self._log = CommitLog(shop.disk, shop.layout)
        self._splits = Splits(shop.options.selection, shop.options.rows_per_shard)
        self._progress = Progress(self._splits)
        self._gate = SampleGate()
        self._record = RunRecord({})
        self._pump: Pump[Completion] | None = None
        self._is_closed = False

    @property
    def state_dir(self) -> Path | None:
        """Where run.json and report.json are."""
        return self._layout.state_dir

    def start(
        self, *, fingerprint: dict[str, Any], run: dict[str, Any], overwrite: bool, resume: bool, retry_errors: bool
    ) -> ResumeState:
        """Take the lock and what an earlier run of the same job has left.

        Raises UsageError for an output that is not this job's (nothing is touched then), JobError if it is locked.
        """
        fingerprint = plain({**fingerprint, "output_options": self._shop.options.fingerprint(self._layout.format)})
        check_target(self._layout, overwrite=overwrite)
        self._make_place()
        self._lock.take()
        try:
            record = self._settled(fingerprint, overwrite=overwrite, resume=resume)
            if self._is_finished(record) and not (retry_errors and record.finished["num_error_rows"]):  # type: ignore[index]
                return self._resume_finished(record)
            return self._begin(record, run, retry_errors=retry_errors)
        except BaseException:
            self._lock.free()
            raise

    def _make_place(self) -> None:
        try:
            self._disk.make_folder(self._layout.state_dir)
        except JobError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in NO_PLACE:
                target = self._layout.target
                raise UsageError(f"{target}: cannot be made: {error.message}", hint="give another output") from error
            raise

    def _settled(self, fingerprint: dict[str, Any], *, overwrite: bool, resume: bool) -> RunRecord:
        """The record to go on with: the one that is there, or a new one after what was there is discarded."""
        layout = self._layout
        record = known_record(self._disk, layout, fingerprint)
        is_same = record is not None and record.fingerprint == fingerprint
        if record is not None and not overwrite:
            check_same_job(layout, record, fingerprint)
        if record is not None and is_same:
            check_visible_file(layout, record, overwrite=overwrite)
            if resume and not self._is_lost(record):
                record.replaces = record.replaces or (overwrite and layout.target.exists())
                return record
        if record is not None:
            discard(self._disk, layout, record)
        return RunRecord(fingerprint, replaces=layout.is_file and layout.target.exists())

    def _is_finished(self, record: RunRecord) -> bool:
        finished, layout = record.finished, self._layout
        if finished is None:
            return False
        if layout.is_file:
            return layout.target.is_file() and layout.target.stat().st_size == finished["file"]["size"]
        return layout.success_path.exists() and all(
            (layout.target / seal.name).is_file() and (layout.target / seal.name).stat().st_size == seal.size
            for seal in (summary.visible for summary in self._log.last())
            if seal is not None
        )

    def _is_lost(self, record: RunRecord) -> bool:
        """A single file that was finished, is gone, and cannot be put together again."""
        if not self._layout.is_file or record.finished is None or self._is_finished(record):
            return False
        return any(not self._layout.typed_part(split).exists() for split in self._log.last_places())

    def _resume_finished(self, record: RunRecord) -> ResumeState:
        finished = record.finished or {}
        self._record = record
        self._splits.num_selected = finished["num_input_rows"]
        self._drop_spent_parts(finished["num_error_rows"])
        return ResumeState(True, finished["num_input_rows"], finished["num_error_rows"], len(record.runs))

    def _begin(self, record: RunRecord, run: dict[str, Any], *, retry_errors: bool) -> ResumeState:
        layout, disk = self._layout, self._disk
        record.was_finished = record.was_finished or record.finished is not None
        disk.make_folder(layout.journal_dir)
        if layout.keeps_parts:
            disk.make_folder(layout.parts_dir)
        if not layout.is_file:
            disk.remove(layout.success_path)
        elif record.finished is not None and layout.target.exists():
            record.replaces = True
        run_count = len(record.runs)
        record.finished = None
        record.output = {**self._shop.options.fingerprint(layout.format), "model": self._shop.options.model}
        record.begin_run(run)
        record.save(disk, layout.run_path)
        self._record = record
        self._log.begin(record.fingerprint)
        recovery = Recovery(
            self._shop, self._log, record.job, retry_errors=retry_errors, was_finished=record.was_finished
        )
        recovery.load(self._progress)
        num_errors = (
            sum(
                shard.num_error_rows
                for split, shard in self._progress.committed.items()
                if split not in self._progress.open
            )
            + journalled(self._shop, self._progress.open).num_error_rows
        )
        state = ResumeState(False, self._progress.num_done, 0 if retry_errors else num_errors, run_count)
        self._writer = SplitWriter(self._shop, self._log, self._progress, record.job)
        self._pump = Pump(self._writer.handle, self._shop.options.flush_interval_s, name="offgen-writer")
        self._pump.poke()
        return state

    def is_done(self, row_id: int) -> bool:
        """Whether an earlier run has finished the row."""
        return self._progress.is_done(row_id)

    def write(self, completion: Completion) -> None:
        """Take one sample. Once all samples of its row are in, the row is on disk within the flush interval."""
        samples = self._gate.admit(completion)
        if samples is not None:
            assert self._pump is not None, "write comes after start"
            self._pump.put(samples, self._gate.num_bytes(samples))

    def end_of_input(self, num_selected: int) -> None:
        """Say how many rows the selection has, so that the last split can be committed."""
        self._splits.num_selected = num_selected
        if self._pump is not None:
            self._pump.poke()

    def finish(self, report: dict[str, Any] | None = None) -> Totals:
        """Commit all that is left and call the output done. Raises JobError if rows are missing."""
        if self._pump is not None:
            self._pump.close()
            self._pump = None
            self._seal(report)
        totals = self.totals()
        self.close()
        return totals

    def _seal(self, report: dict[str, Any] | None) -> None:
        layout, disk, record = self._layout, self._disk, self._record
        assert self._splits.num_selected is not None, "finish comes after end_of_input"
        self._writer.finish()
        missing = self._splits.num_selected - self._progress.num_done
        if missing:
            raise JobError(f"{layout.target}: {missing} rows have no completion", hint="run the same command again")
        pass_through = self._final_schema()
        splits = sorted(self._progress.committed)
        file: FileSeal | None = None
        if layout.is_file:
            file = assemble(self._shop, splits, pass_through)
        else:
            self._rewrite_narrower(pass_through)
        totals = self.totals()
        record.finished = {
            "rows": totals.rows,
            "num_input_rows": self._splits.num_selected,
            "num_error_rows": totals.num_error_rows,
            "file": None if file is None else {"name": file.name, "size": file.size, "crc32": file.crc32},
        }
        if report is not None:
            self.write_report(report)
        record.save(disk, layout.run_path)
        if layout.is_file:
            disk.rename(temporary_of(layout.state_dir / layout.target.name), layout.target)
        else:
            with disk.create(layout.success_path) as success:
                success.sync()
            disk.sync_folder(layout.target)
        self._drop_spent_parts(totals.num_error_rows)

    def _final_schema(self) -> pa.Schema:
        texts = {summary.schema for summary in self._log.last()}
        return self._shop.schema.widened([schema_from_text(text) for text in sorted(texts)])

    def _rewrite_narrower(self, pass_through: pa.Schema) -> None:
        """So that any reader takes the folder whole: every part has the same columns of the same types."""
        for summary in list(self._log.last()):
            if not schema_from_text(summary.schema).equals(pass_through, check_metadata=True):
                self._log.append(rewrite_part(self._shop, summary, pass_through))

    def _drop_spent_parts(self, num_error_rows: int) -> None:
        """Shards kept in the state folder go once the job is done, but for those that --retry-errors needs."""
        layout = self._layout
        if not layout.keeps_parts or (layout.is_file and num_error_rows):
            return
        needed = {one.split for one in self._log.last() if one.counts.num_error_rows and not layout.is_file}
        for split, path in layout.parts(layout.parts_dir).items():
            if split not in needed:
                self._disk.remove(path)

    def totals(self) -> Totals:
        """What the output holds by now, over all shards and runs; after `close`, the journals' rows too.

        Rows that a retry has begun to replace count as what they were.
        """
        totals = Totals()
        for summary in self._log.last():
            if self._record.finished is not None or summary.split in self._progress.committed:
                totals.add(summary.counts, summary.timings)
        if self._is_closed:
            fresh = {split: found for split, found in self._progress.open.items() if found.base is None}
            totals.merge(journalled(self._shop, fresh))
        return totals

    def write_report(self, report: dict[str, Any]) -> None:
        """Replace report.json."""
        text = json.dumps(report, ensure_ascii=False, indent=2, default=str)
        self._disk.write_whole(self._layout.report_path, text.encode("utf-8", "replace") + b"\n")

    def close(self) -> None:
        """Make all that finished durable and free the lock. Safe to call again; raises what a flush met."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._pump is not None:
                self._pump.close()
                self._writer.close()
        finally:
            self._lock.free()
