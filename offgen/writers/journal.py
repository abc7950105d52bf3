"""The journal of one open split: finished rows, appended as they come, gone once the split's shard is committed.

A file of frames: first a head (JSON: version, job, split, generation), then Arrow streams of journal batches. A row's
samples lie together in one frame; of a row that comes twice the later frame holds. Knows nothing of shards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from offgen.records import Completion
from offgen.writers.frames import Frames, frame, map_file
from offgen.writers.options import OutputOptions
from offgen.writers.own_columns import NUM_JOURNAL_FIELDS, build_journal_columns, journal_schema
from offgen.writers.schema import OutputSchema

VERSION = 1


class RowEncoder:
    """Completions to frame payloads, columnar: pass-through columns are taken from the rows' own batches."""

    def __init__(self, options: OutputOptions, schema: OutputSchema) -> None:
        self._options = options
        self._schema = schema
        self._selected: list[tuple[pa.Schema, list[int], pa.Schema]] = []  # of the schemas seen, few

    def batches(self, completions: Sequence[Completion]) -> list[pa.RecordBatch]:
        """The samples as journal batches: one for each of their source batches, in the order these first come."""
        groups: dict[int, list[int]] = {}
        for place, one in enumerate(completions):
            groups.setdefault(id(one.row.record), []).append(place)
        order = [place for places in groups.values() for place in places]
        own = build_journal_columns([completions[place] for place in order], order, self._options)
        batches, start = [], 0
        for places in groups.values():
            rows = [completions[place].row for place in places]
            selected, schema = self._select(rows[0].record.schema)
            theirs = take_rows(rows[0].record.select(selected), np.fromiter((row.index for row in rows), np.int64))
            columns = [*(column.slice(start, len(places)) for column in own), *theirs]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            start += len(places)
        return batches

    def frames(self, completions: Sequence[Completion]) -> list[bytes]:
        """The samples as frames: one for each schema among their source batches."""
        streams: list[tuple[pa.Schema, pa.BufferOutputStream, Any]] = []
        for batch in self.batches(completions):
            stream = next((known for known in streams if known[0].equals(batch.schema, check_metadata=True)), None)
            if stream is None:
                sink = pa.BufferOutputStream()
                stream = (batch.schema, sink, pa.ipc.new_stream(sink, batch.schema))
                streams.append(stream)
            stream[2].write_batch(batch)
        return [_finished(sink, writer) for _, sink, writer in streams]

    def _select(self, schema: pa.Schema) -> tuple[list[int], pa.Schema]:
        for known, places, selected in self._selected:
            if known.equals(schema, check_metadata=True):
                return places, selected
        places, selected = self._schema.selected(schema)
        self._selected.append((schema, places, journal_schema(selected)))
        return places, self._selected[-1][2]


def _finished(sink: pa.BufferOutputStream, writer: Any) -> bytes:
    writer.close()
    return frame(memoryview(sink.getvalue()))


def take_rows(batch: pa.RecordBatch, indices: Any) -> list[pa.Array]:
    """The columns of some rows; a run of neighbours is not copied."""
    count = len(indices)
    if count and indices[-1] - indices[0] == count - 1 and (np.diff(indices) == 1).all():
        return list(batch.slice(int(indices[0]), count).columns)
    places = pa.array(indices)
    return [take(column, places) for column in batch.columns]


def take(column: pa.Array, places: pa.Array) -> pa.Array:
    """`column.take`, also for the types that pyarrow has no kernel for."""
    try:
        return column.take(places)
    except pa.ArrowNotImplementedError:  # string views and run-end encoded columns, among others
        pieces = [column.slice(place, 1) for place in places.to_pylist()]
        return pa.concat_arrays(pieces) if pieces else column.slice(0, 0)


def head_frame(job: str, split: int, generation: int) -> bytes:
    head = {"version": VERSION, "job": job, "split": split, "generation": generation}
    return frame(json.dumps(head).encode("utf-8"))


@dataclass(slots=True)
class JournalContents:
    """What a journal holds: its whole frames, in place on disk. `size` of `file_size` bytes are good."""

    job: str | None = None  # None: not even the head could be read
    batches: list[pa.RecordBatch] = field(default_factory=list)
    frame_numbers: list[int] = field(default_factory=list)  # one for each batch
    size: int = 0
    file_size: int = 0

    @property
    def is_torn(self) -> bool:
        return self.size < self.file_size


def read_journal(path: Path) -> JournalContents:
    """Read up to the first frame that is not whole. The batches stay memory-mapped."""
    data = map_file(path)
    contents = JournalContents(file_size=len(data))
    frames = Frames(data)
    for number, payload in enumerate(frames):
        try:
            if number == 0:
                contents.job = _job_of(payload)
            else:
                batches = _batches_of(payload)
                contents.batches += batches
                contents.frame_numbers += [number] * len(batches)
        except (ValueError, KeyError, TypeError, pa.ArrowException):
            return contents
        contents.size = frames.valid_size
    return contents


def _job_of(payload: memoryview) -> str:
    head = json.loads(bytes(payload))
    if head["version"] != VERSION:
        raise ValueError("a journal of another version")
    return str(head["job"])


def _batches_of(payload: memoryview) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        batches = list(reader)
    if any(batch.num_columns < NUM_JOURNAL_FIELDS for batch in batches):
        raise ValueError("not a journal's batch")
    return batches
