"""The checks of one output, job by job: its state, its files, its rows, and how they stand to the input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from offgen.errors import JobError, OffgenError
from offgen.readers import Input, Selection, open_input
from offgen.verify.ledger import RowLedger
from offgen.verify.values import InputValues
from offgen.writers.finished import SHARD_FOLDER, FinishedJob, VisibleRows, find_jobs, visible_rows
from offgen.writers.options import OutputOptions
from offgen.writers.recovery import seal_of
from offgen.writers.splits import Splits
from offgen.writers.summary import FileSeal


@dataclass(slots=True)
class Verdict:
    """What was found. `problems` is empty for a sound output."""

    num_rows: int = 0
    num_errors: int = 0
    num_files: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_output(
    output: str,
    inputs: Sequence[str] = (),
    *,
    id_column: str | None = None,
    input_format: str | None = None,
    subset: str | None = None,
    split: str | None = None,
) -> Verdict:
    """Check an output and, if `inputs` are given, that it is theirs.

    Raises UsageError if there is no output of offgen's, or an input that cannot be opened.
    """
    jobs = find_jobs(output)
    verdict = Verdict()
    data = None
    if inputs:
        data = open_input(inputs, input_format=input_format, subset=subset, split=split, output=Path(output))
    if jobs[0].layout.target != Path(output):  # a parent of shards, not one of them
        _check_shard_folders(jobs, verdict)
    for job in jobs:
        JobCheck(job, data, id_column, verdict).run()
    return verdict


def _check_shard_folders(jobs: Sequence[FinishedJob], verdict: Verdict) -> None:
    """Shards of one job: all there, and of one count."""
    found = [match for job in jobs if (match := SHARD_FOLDER.fullmatch(job.layout.target.name))]
    counts = sorted({int(match[2]) for match in found})
    if len(counts) > 1:
        verdict.problems.append(f"shards of {' and of '.join(map(str, counts))} lie side by side")
    for count in counts:
        there = {int(match[1]) for match in found if int(match[2]) == count}
        missing = [str(index) for index in range(count) if index not in there]
        if missing:
            verdict.problems.append(f"shards {', '.join(missing)} of {count} are missing")


class JobCheck:
    """One job's checks, in the order of `run`."""

    def __init__(self, job: FinishedJob, data: Input | None, id_column: str | None, verdict: Verdict) -> None:
        self._job = job
        self._data = data
        self._verdict = verdict
        self._where = str(job.layout.target)
        self._id_column = id_column or _id_column_of(job)

    def run(self) -> None:
        options, record = self._job.options, self._job.record
        if record is None or options is None:
            self._say(f"{self._job.layout.run_path} cannot be read: what the output should hold is not known")
            return
        splits = Splits(options.selection, options.rows_per_shard)
        self._check_end(splits)
        self._check_files(splits)
        self._check_rows(options, splits)

    def _say(self, problem: str) -> None:
        self._verdict.problems.append(f"{self._where}: {problem}")

    def _check_end(self, splits: Splits) -> None:
        """Finished, and of as many rows as the input has."""
        record, layout = self._job.record, self._job.layout
        assert record is not None, "run() has seen to it"
        if record.finished is None or not (layout.is_file or layout.success_path.exists()):
            self._say("the job is not finished; run the same command again")
        if record.finished is not None:
            splits.num_selected = int(record.finished["num_input_rows"])
        if self._data is None:
            return
        selection = splits_selection(self._job.options)
        num_selected = selection.num_selected(self._data.count_rows())
        if splits.num_selected is not None and splits.num_selected != num_selected:
            self._say(f"was made of {splits.num_selected} rows; the input has {num_selected} for it")
        splits.num_selected = num_selected

    def _check_files(self, splits: Splits) -> None:
        """Names, sizes and checksums, as noted when they were written."""
        job = self._job
        assert job.record is not None, "run() has seen to it"
        files = job.visible_files()
        if job.layout.is_file:
            finished = job.record.finished
            if finished is not None:
                self._check_seal(job.layout.target, FileSeal(**finished["file"]))
            return
        noted = set()
        num_rows = 0
        for summary in job.summaries():
            noted.add(summary.split)
            num_rows += summary.counts.num_input_rows
            if summary.visible is not None:
                self._check_seal(job.layout.visible_part(summary.split), summary.visible)
        strange = [path.name for split, path in files.items() if split not in noted]
        if strange:
            self._say(f"{', '.join(sorted(strange))}: not noted in commits.log")
        missing = [split for split in range(splits.num_splits or 0) if split not in noted]
        if missing:
            self._say(f"shards {', '.join(map(str, missing))} are not committed")

    def _check_seal(self, path: Path, seal: FileSeal) -> None:
        self._verdict.num_files += 1
        if not path.is_file():
            self._say(f"{path.name} is missing")
            return
        found = seal_of(path)
        if found.size != seal.size:
            self._say(f"{path.name} has {found.size} bytes; {seal.size} were written")
        elif found.crc32 != seal.crc32:
            self._say(f"{path.name} has another checksum than when it was written")

    def _check_rows(self, options: OutputOptions, splits: Splits) -> None:
        ledger = RowLedger(splits, options.num_samples)
        values = None
        if self._data is not None and options.format != "openai-batch":
            values = InputValues(self._data, splits_selection(options), options, self._job)
        for _, path in sorted(self._job.visible_files().items()):
            for rows in self._readable(path, options):
                ledger.add(rows.row_ids, rows.samples)
                self._verdict.num_errors += rows.num_errors
                if values is not None:
                    values.compare(rows)
        self._verdict.num_rows += ledger.num_rows
        for problem in ledger.problems(self._name_of):
            self._say(problem)
        if values is not None:
            for problem in values.problems(self._name_of):
                self._say(problem)

    def _readable(self, path: Path, options: OutputOptions) -> Iterator[VisibleRows]:
        try:
            yield from visible_rows(path, options)
        except OffgenError:
            raise
        except MemoryError as problem:
            raise JobError(f"{path}: not enough memory to read it") from problem
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, pa.ArrowException) as problem:
            self._say(f"{path.name} cannot be read to its end: {problem}")
        except Exception as problem:  # decompressors have exceptions of their own
            self._say(f"{path.name} cannot be read to its end: {type(problem).__name__}: {problem}")

    def _name_of(self, row_id: int) -> str:
        """A row as people know it: by --id-column too, where the input is at hand."""
        name = f"row_id {row_id}"
        if self._data is None or self._id_column is None or self._id_column not in self._data.schema.names:
            return name
        one = Selection(skip=row_id, limit=1)
        row = next(iter(self._data.rows([self._id_column], selection=one, skip=lambda _: False)), None)
        return name if row is None else f"{name} ({self._id_column} {row.values.get(self._id_column)})"


def _id_column_of(job: FinishedJob) -> str | None:
    """What the job itself was told to name its rows by."""
    found: Any = {} if job.record is None else job.record.run
    for key in ("config", "output", "id_column"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def splits_selection(options: OutputOptions | None) -> Selection:
    """The reader's selection of a job."""
    assert options is not None, "run() has seen to it"
    chosen = options.selection
    return Selection(chosen.skip, chosen.limit, chosen.shard_index, chosen.num_shards)
