"""What the writer's thread does: appends finished rows to the journals of their splits, commits a split when it is
whole.

The only one to touch the files of a running job. Knows the order of steps; shard.py knows how a shard is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offgen.records import Completion
from offgen.writers.commits import CommitLog
from offgen.writers.disk import DiskFile
from offgen.writers.journal import RowEncoder, head_frame
from offgen.writers.progress import Progress
from offgen.writers.shard import ShardCommit, Shop

MAX_OPEN_JOURNALS = 64


class SplitWriter:
    """`handle` is the pump's; `finish` and `close` come after the pump has ended."""

    def __init__(self, shop: Shop, log: CommitLog, progress: Progress, job: str) -> None:
        self._shop = shop
        self._log = log
        self._progress = progress
        self._job = job
        self._encoder = RowEncoder(shop.options, shop.schema)
        self._journals: dict[int, DiskFile] = {}  # open files, the least recently used first
        self._unsynced: set[int] = set()
        self._has_new_names = False

    def handle(self, completions: Sequence[Completion], is_due: bool) -> None:
        """Journal the rows; make them durable if it is time; commit the splits that are whole by now."""
        for split, samples in self._by_split(completions):
            self._append(split, samples)
        if is_due:
            self._sync()
        for split in [split for split in self._progress.open if self._progress.is_complete(split)]:
            self._commit(split)

    def _by_split(self, completions: Sequence[Completion]) -> list[tuple[int, Sequence[Completion]]]:
        if not completions:
            return []
        row_ids = np.fromiter((one.row.row_id for one in completions), np.int64, len(completions))
        splits = self._progress.splits.split_of(row_ids)
        if splits[0] == splits[-1] and (splits == splits[0]).all():
            return [(int(splits[0]), completions)]
        return [
            (int(split), [completions[place] for place in np.flatnonzero(splits == split).tolist()])
            for split in np.unique(splits)
        ]

    def _append(self, split: int, samples: Sequence[Completion]) -> None:
        file = self._journal(split)
        for data in self._encoder.frames(samples):
            file.write(data)
        file.push()
        self._unsynced.add(split)
        self._progress.mark_rows(split, [one.row.row_id for one in samples])

    def _journal(self, split: int) -> DiskFile:
        file = self._journals.pop(split, None)
        if file is None:
            while len(self._journals) >= MAX_OPEN_JOURNALS:
                self._close_journal(next(iter(self._journals)))
            found = self._progress.opened(split)
            file = self._shop.disk.append(self._shop.layout.journal_path(split, found.generation))
            if not found.has_journal:
                file.write(head_frame(self._job, split, found.generation))
                found.has_journal = self._has_new_names = True
        self._journals[split] = file
        return file

    def _close_journal(self, split: int) -> None:
        file = self._journals.pop(split)
        if split in self._unsynced:
            file.sync()
            self._unsynced.discard(split)
        file.close()

    def _sync(self) -> None:
        for split in sorted(self._unsynced):
            self._journals[split].sync()
        self._unsynced.clear()
        if self._has_new_names:
            self._shop.disk.sync_folder(self._shop.layout.journal_dir)
            self._has_new_names = False

    def _commit(self, split: int) -> None:
        if split in self._journals:
            self._journals.pop(split).close()
        self._unsynced.discard(split)  # the shard is fsynced before the journal goes
        found = self._progress.open[split]
        if found.base is None or found.has_journal:
            base = None if found.base is None else self._log.find(split)
            summary = ShardCommit(self._shop, split, found.generation, base).write()
            self._log.append(summary)
            self._progress.commit(split, summary)
            self._shop.disk.remove(self._shop.layout.journal_path(split, found.generation))
        else:
            del self._progress.open[split]

    def finish(self) -> None:
        """Commit what is left, a shard of no rows for an empty input too."""
        for split in self._progress.missing_splits():
            self._progress.opened(split)
            if self._progress.is_complete(split):
                self._commit(split)
        self._sync()
        self.close()

    def close(self) -> None:
        for file in self._journals.values():
            file.close()
        self._journals.clear()
