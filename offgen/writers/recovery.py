"""What an earlier run left, made sense of: shards that stand, journals that go on, leavings of a kill swept away.

A shard stands if commits.log knows it and its files have the sizes noted there; else, if its file can be read and holds
exactly the rows of its split, it is taken over and noted anew. A journal newer than its shard is a retry under way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from offgen.errors import JobError
from offgen.writers.commits import CommitLog
from offgen.writers.formats import read_typed, typed_schema
from offgen.writers.gather import is_latest
from offgen.writers.journal import JournalContents, read_journal
from offgen.writers.own_columns import LATENCIES, journal_column
from offgen.writers.progress import Committed, OpenSplit, Progress, unique_rows
from offgen.writers.schema import schema_text
from offgen.writers.shard import Shop, rewrite_part
from offgen.writers.summary import Counts, FileSeal, ShardSummary, Timings, Totals, from_ranges


class Recovery:
    """Loads the state of one job into `progress`."""

    def __init__(self, shop: Shop, log: CommitLog, job: str, *, retry_errors: bool, was_finished: bool) -> None:
        self._shop = shop
        self._log = log
        self._job = job
        self._retry_errors = retry_errors
        self._was_finished = was_finished

    def load(self, progress: Progress) -> None:
        layout, disk = self._shop.layout, self._shop.disk
        for path in layout.temporaries():
            disk.remove(path)
        places = self._log.last_places()
        shards = layout.parts(layout.parts_dir if layout.keeps_parts else layout.target)
        for place, summary in enumerate(self._log):
            if places[summary.split] == place:
                shards.pop(summary.split, None)
                self._load_shard(progress, summary.split, summary)
        for split in shards:
            self._load_shard(progress, split, None)
        for split, journals in layout.journals().items():
            self._load_journals(progress, split, journals)
        if self._retry_errors:
            self._reopen_errors(progress)

    def _load_shard(self, progress: Progress, split: int, summary: ShardSummary | None) -> None:
        standing = self._standing(split, summary)
        if standing is None:
            standing = self._adopted(progress, split, summary)
            if standing is not None:
                self._log.append(standing)
        if standing is not None:
            progress.committed[split] = Committed.of(standing)

    def _standing(self, split: int, summary: ShardSummary | None) -> ShardSummary | None:
        """The summary if the files it speaks of are there."""
        if summary is None:
            return None
        layout = self._shop.layout
        has_typed = _has_size(layout.typed_part(split), summary.typed)
        has_visible = summary.visible is None or _has_size(layout.visible_part(split), summary.visible)
        if has_typed and has_visible:
            return summary
        if self._was_finished and has_visible and summary.visible is not None:
            wants_retry = self._retry_errors and summary.counts.num_error_rows
            return None if wants_retry else summary  # a finished job keeps only the shards that may be retried
        return None

    def _adopted(self, progress: Progress, split: int, old: ShardSummary | None) -> ShardSummary | None:
        """A summary made from the shard itself, or None if it is not whole."""
        path = self._shop.layout.typed_part(split)
        try:
            found = self._summary_of(path, progress, split, old)
        except (OSError, pa.ArrowException, KeyError, ValueError):
            found = None
        if found is None:
            return None
        if found.visible is None and not self._shop.layout.is_file:
            schema = self._shop.schema.theirs(typed_schema(path))
            return rewrite_part(self._shop, found, schema)
        return found

    def _summary_of(self, path: Path, progress: Progress, split: int, old: ShardSummary | None) -> ShardSummary | None:
        schema = self._shop.schema
        pass_through = schema.theirs(typed_schema(path))
        if pass_through is None:
            return None
        counts, timings, ids = Counts(), Timings(), []
        for batch in read_typed(path):
            names = ("row_id", "prompt_tokens", "completion_tokens", "error")
            columns = {name: schema.own(batch, name) for name in names}
            counts.add_columns(*columns.values())
            ids += unique_rows(columns["row_id"])
            if schema.has_own("stats"):
                stats = schema.own(batch, "stats")
                timings.add_columns(
                    {name: stats.field(name) for name in (*LATENCIES, "cached_tokens")}, columns["error"]
                )
        first = progress.splits.first_position(split)
        wanted = [progress.splits.row_id_at(first + offset) for offset in range(len(ids))]
        if sorted(ids) != wanted or not 0 < len(ids) <= progress.splits.rows_per_shard:
            return None
        seal = seal_of(path)
        return ShardSummary(
            split=split,
            generation=0 if old is None else old.generation,
            counts=counts,
            timings=timings if schema.has_own("stats") or old is None else old.timings,
            typed=seal,
            visible=None if self._shop.layout.keeps_parts else seal,
            schema=schema_text(pass_through),
        )

    def _load_journals(self, progress: Progress, split: int, journals: dict[int, Path]) -> None:
        base = progress.committed.get(split)
        newest = max(journals)
        for generation, path in journals.items():
            is_spent = base is not None and generation <= base.generation
            contents = JournalContents() if is_spent else read_journal(path)
            if is_spent or generation < newest or contents.job != self._job:
                del contents
                self._shop.disk.remove(path)
                continue
            if contents.is_torn:
                self._shop.disk.truncate(path, contents.size)
            found = progress.opened(split)
            found.generation, found.has_journal = generation, True
            for batch in contents.batches:
                progress.mark_rows(split, unique_rows(journal_column(batch, "row_id")))

    def _reopen_errors(self, progress: Progress) -> None:
        """Rows with an error are not done any more; what they come to is journalled beside their shard."""
        for summary in self._log.last():
            shard = progress.committed.get(summary.split)
            if shard is not None and shard.num_error_rows:
                progress.mark_rows(summary.split, from_ranges(summary.counts.error_rows), is_done=False)
        for split, found in progress.open.items():
            if not found.has_journal:
                continue
            for batch in read_journal(self._shop.layout.journal_path(split, found.generation)).batches:
                row_ids = np.asarray(journal_column(batch, "row_id"))
                has_error = np.asarray(journal_column(batch, "error").is_valid())
                failed = set(row_ids[has_error].tolist())
                progress.mark_rows(split, set(row_ids.tolist()) - failed)
                progress.mark_rows(split, failed, is_done=False)


def _has_size(path: Path, seal: FileSeal) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size == seal.size
    return False


def seal_of(path: Path) -> FileSeal:
    """Size and checksum of a file as it lies there."""
    import zlib

    crc, size = 0, 0
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                crc, size = zlib.crc32(data, crc), size + len(data)
    except OSError as problem:
        raise JobError(f"{path}: cannot be read: {problem.strerror}") from problem
    return FileSeal(path.name, size, crc)


def journalled(shop: Shop, splits: Mapping[int, OpenSplit]) -> Totals:
    """What the journals of open splits hold."""
    totals = Totals()
    for split, found in splits.items():
        if found.has_journal:
            contents = read_journal(shop.layout.journal_path(split, found.generation))
            totals.add(*_journal_summary(contents))
    return totals


def _journal_summary(contents: JournalContents) -> tuple[Counts, Timings]:
    counts, timings = Counts(), Timings()
    if not contents.batches:
        return counts, timings
    row_ids = np.concatenate([np.asarray(journal_column(batch, "row_id")) for batch in contents.batches])
    lengths = [batch.num_rows for batch in contents.batches]
    holds = is_latest(row_ids, np.repeat(np.asarray(contents.frame_numbers, np.int64), lengths))
    names = ("row_id", "prompt_tokens", "completion_tokens", "error", *LATENCIES, "cached_tokens")
    start = 0
    for batch in contents.batches:
        here = pa.array(holds[start : start + batch.num_rows])
        start += batch.num_rows
        columns = {name: journal_column(batch, name).filter(here) for name in names}
        counts.add_columns(*(columns[name] for name in names[:4]))
        timings.add_columns(columns, columns["error"])
    return counts, timings
