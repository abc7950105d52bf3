"""Commits one split: its journal (and, after a retry, its old shard) becomes a shard under its final name.

The order of steps is what makes a kill at any of them harmless: files are written under temporary names, fsynced and
renamed; then the summary is appended to commits.log; only then does the journal go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offgen.writers.disk import Disk, DiskFile, temporary_of
from offgen.writers.formats import KeptWriter, RowWriter, open_writer, read_typed, typed_schema
from offgen.writers.gather import Pieces, final_order, gather
from offgen.writers.journal import read_journal
from offgen.writers.layout import Layout
from offgen.writers.openai_batch import OpenAIBatchLines
from offgen.writers.options import OutputOptions
from offgen.writers.own_columns import LATENCIES, NUM_JOURNAL_FIELDS, journal_column
from offgen.writers.schema import OutputSchema, schema_text
from offgen.writers.summary import Counts, FileSeal, ShardSummary, Timings


@dataclass(frozen=True, slots=True)
class Shop:
    """What every commit of a job needs."""

    disk: Disk
    layout: Layout
    options: OutputOptions
    schema: OutputSchema

    def visible_writer(self, file: DiskFile, schema: pa.Schema) -> RowWriter:
        lines_of = OpenAIBatchLines(self.schema, self.options.model).lines
        layout = self.layout
        is_batch = layout.format == "openai-batch"
        return open_writer(
            file, layout.format, schema, compression=layout.compression, lines_of=lines_of if is_batch else None
        )


@contextlib.contextmanager
def sealed(disk: Disk, path: Path) -> Iterator[tuple[DiskFile, FileSeal]]:
    """A file written under a temporary name that takes its own at the end of the block; the seal is filled in then."""
    temporary = temporary_of(path)
    seal = FileSeal(path.name, 0, 0)
    file = disk.create(temporary)
    try:
        with file:
            yield file, seal
            file.sync()
    except BaseException:
        with contextlib.suppress(Exception):
            disk.remove(temporary)
        raise
    seal.size, seal.crc32 = file.size, file.crc
    disk.rename(temporary, path)


class ShardCommit:
    """One split on its way to a shard."""

    def __init__(self, shop: Shop, split: int, generation: int, base: ShardSummary | None) -> None:
        self._shop = shop
        self._split = split
        self._generation = generation
        self._base = base
        self._contents = read_journal(shop.layout.journal_path(split, generation))
        self._journal = self._contents.batches

    def write(self) -> ShardSummary:
        """Write the shard's files under their final names and say what is in them."""
        pass_through = self._pass_through()
        pieces = self._pieces(pass_through)
        order, row_ids = final_order(pieces, by_finish=self._shop.options.row_order == "finish")
        rows = gather(pieces.batches, order, row_ids)
        counts = Counts()
        typed, visible = write_part(self._shop, self._split, pass_through, self._counted(rows, counts))
        return ShardSummary(
            split=self._split,
            generation=self._generation,
            counts=counts,
            timings=self._timings(order, pieces),
            typed=typed,
            visible=visible,
            schema=schema_text(pass_through),
        )

    def _pass_through(self) -> pa.Schema:
        """Of this split alone, so that it does not depend on what else was finished by now."""
        schemas = {pa.schema(list(batch.schema)[NUM_JOURNAL_FIELDS:]) for batch in self._journal}
        if self._base is not None:
            schemas.add(self._base_schema())
        return self._shop.schema.widened(sorted(schemas, key=str))

    def _base_schema(self) -> pa.Schema:
        """Of the old shard as it lies there: after a kill it may already be the new one."""
        schema = self._shop.schema.theirs(typed_schema(self._shop.layout.typed_part(self._split)))
        assert schema is not None, "a shard is taken as a base only with our columns in it"
        return schema

    def _pieces(self, pass_through: pa.Schema) -> Pieces:
        schema = self._shop.schema
        pieces = Pieces([], [], [], [], [])
        if self._base is not None:
            for batch in read_typed(self._shop.layout.typed_part(self._split)):
                has_samples = schema.has_own("sample_index")
                samples = schema.own(batch, "sample_index") if has_samples else np.zeros(batch.num_rows, np.int32)
                _add(pieces, schema.conform(batch, pass_through), schema.own(batch, "row_id"), samples, None, rank=-1)
        for rank, batch in zip(self._contents.frame_numbers, self._journal, strict=True):
            keys = [journal_column(batch, name) for name in ("row_id", "sample_index", "finish_order")]
            _add(pieces, schema.from_journal(batch, pass_through), *keys, rank=rank)
        return pieces

    def _counted(self, rows: Iterator[pa.RecordBatch], counts: Counts) -> Iterator[pa.RecordBatch]:
        schema = self._shop.schema
        for batch in rows:
            names = ("row_id", "prompt_tokens", "completion_tokens", "error")
            counts.add_columns(*(schema.own(batch, name) for name in names))
            yield batch

    def _timings(self, order: Any, pieces: Pieces) -> Timings:
        timings = Timings()
        if self._base is not None:
            timings.merge(self._base.timings)
        kept = np.zeros(sum(batch.num_rows for batch in pieces.batches), bool)
        kept[order] = True
        start = len(kept) - sum(batch.num_rows for batch in self._journal)
        for batch in self._journal:
            here = pa.array(kept[start : start + batch.num_rows])
            start += batch.num_rows
            names = (*LATENCIES, "cached_tokens")
            columns = {name: pc.filter(journal_column(batch, name), here) for name in names}
            timings.add_columns(columns, pc.filter(journal_column(batch, "error"), here))
        return timings


def _add(pieces: Pieces, batch: pa.RecordBatch, row_ids: Any, samples: Any, finish: Any, *, rank: int) -> None:
    pieces.batches.append(batch)
    pieces.row_ids.append(np.asarray(row_ids))
    pieces.sample_indices.append(np.asarray(samples))
    before = sum(one.num_rows for one in pieces.batches[:-1])
    pieces.finish_orders.append(np.arange(before, before + batch.num_rows) if finish is None else np.asarray(finish))
    pieces.ranks.append(rank)


def write_part(
    shop: Shop, split: int, pass_through: pa.Schema, rows: Iterator[pa.RecordBatch]
) -> tuple[FileSeal, FileSeal | None]:
    """Write a split's typed shard, and the visible one where that is another file."""
    layout, schema = shop.layout, shop.schema.full(pass_through)
    with contextlib.ExitStack() as stack:
        files: list[tuple[RowWriter, FileSeal]] = []
        if layout.keeps_parts:
            file, seal = stack.enter_context(sealed(shop.disk, layout.kept_part(split)))
            files.append((KeptWriter(file, schema), seal))
        if not layout.is_file:
            file, seal = stack.enter_context(sealed(shop.disk, layout.visible_part(split)))
            files.append((shop.visible_writer(file, schema), seal))
        for batch in rows:
            for writer, _ in files:
                writer.write(batch)
        for writer, _ in files:
            writer.finish()
    typed = files[0][1]
    return typed, None if layout.is_file else files[-1][1]


def rewrite_part(shop: Shop, summary: ShardSummary, pass_through: pa.Schema) -> ShardSummary:
    """Write a shard again under a wider schema."""
    path = shop.layout.typed_part(summary.split)
    rows = (shop.schema.conform(batch, pass_through) for batch in read_typed(path))
    typed, visible = write_part(shop, summary.split, pass_through, rows)
    return ShardSummary(
        split=summary.split,
        generation=summary.generation,
        counts=summary.counts,
        timings=summary.timings,
        typed=typed,
        visible=visible,
        schema=schema_text(pass_through),
    )


def seals_of(summaries: Sequence[ShardSummary]) -> list[FileSeal]:
    """The files that the summaries speak of."""
    return [seal for one in summaries for seal in (one.typed, one.visible) if seal is not None]
