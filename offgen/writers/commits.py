"""commits.log: a frame for each shard that was committed, the last one of a split holds.

The head frame repeats the job's fingerprint, so that a run.json that cannot be read is no loss. Knows frames and
summaries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from offgen.writers.disk import Disk
from offgen.writers.frames import Frames, frame, map_file
from offgen.writers.layout import Layout
from offgen.writers.summary import ShardSummary

VERSION = 1


class CommitLog:
    """Appended to by the writer's thread only."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._path = layout.commits_path

    def head(self) -> dict[str, Any] | None:
        """The fingerprint it was begun with; None if it cannot be read."""
        for payload in Frames(map_file(self._path)):
            try:
                head = json.loads(bytes(payload))
                return dict(head["fingerprint"]) if head["version"] == VERSION else None
            except (ValueError, KeyError, TypeError):
                return None
        return None

    def begin(self, fingerprint: dict[str, Any]) -> None:
        """Cut a torn tail; begin anew if even the head is lost."""
        if self.head() is None:
            head = {"version": VERSION, "fingerprint": fingerprint}
            self._disk.write_whole(self._path, frame(json.dumps(head).encode("utf-8")))
            return
        data = map_file(self._path)
        frames = Frames(data)
        for _ in frames:
            pass
        size, is_torn = frames.valid_size, frames.valid_size < len(data)
        del frames, data
        if is_torn:
            self._disk.truncate(self._path, size)

    def append(self, summary: ShardSummary) -> None:
        with self._disk.append(self._path) as file:
            file.write(frame(json.dumps(summary.to_dict()).encode("utf-8")))
            file.sync()

    def __iter__(self) -> Iterator[ShardSummary]:
        """Every summary that was written, the older ones of a split too, one at a time."""
        for number, payload in enumerate(Frames(map_file(self._path))):
            if number:
                try:
                    yield ShardSummary.from_dict(json.loads(bytes(payload)))
                except (ValueError, KeyError, TypeError):
                    continue

    def find(self, split: int) -> ShardSummary | None:
        """The summary that holds of one split."""
        start = b'{"split": %d,' % split
        found = None
        for payload in Frames(map_file(self._path)):
            if payload[: len(start)] == start:
                found = bytes(payload)
        return None if found is None else ShardSummary.from_dict(json.loads(found))

    def last_places(self) -> dict[int, int]:
        """split -> which of the summaries, counted from 0, holds."""
        return {summary.split: place for place, summary in enumerate(self)}

    def last(self) -> Iterator[ShardSummary]:
        """The summary that holds of each split; two passes, so that few are in memory."""
        places = set(self.last_places().values())
        return (summary for place, summary in enumerate(self) if place in places)
