"""Shards into one file, in one streaming pass. The file takes its name when it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from offgen.writers.disk import temporary_of
from offgen.writers.formats import GROUP_BYTES, GROUP_ROWS, read_typed
from offgen.writers.gather import group_cuts
from offgen.writers.row_sizes import row_sizes
from offgen.writers.shard import Shop
from offgen.writers.summary import FileSeal


def assemble(shop: Shop, splits: Sequence[int], pass_through: pa.Schema) -> FileSeal:
    """Write the whole output beside the shards, under a temporary name, fsynced: ready to be renamed."""
    layout, schema = shop.layout, shop.schema
    with shop.disk.create(temporary_of(layout.state_dir / layout.target.name)) as file:
        writer = shop.visible_writer(file, schema.full(pass_through))
        shards = (batch for split in splits for batch in read_typed(layout.typed_part(split)))
        rows = (schema.conform(batch, pass_through) for batch in shards if batch.num_rows)
        for batch in regrouped(rows, row_ids_of=lambda batch: np.asarray(schema.own(batch, "row_id"))):
            writer.write(batch)
        writer.finish()
        file.sync()
    return FileSeal(layout.target.name, file.size, file.crc)


def regrouped(batches: Iterator[pa.RecordBatch], *, row_ids_of: Any) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a row group's size."""
    held: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        held.append(batch)
        num_rows += batch.num_rows
        num_bytes += int(row_sizes(batch).sum())
        while num_rows > GROUP_ROWS or num_bytes > GROUP_BYTES:
            joined = pa.concat_batches(held) if len(held) > 1 else held[0]
            sizes = row_sizes(joined)
            _, end = next(group_cuts(sizes, row_ids_of(joined)))
            if end == joined.num_rows:
                break
            yield joined.slice(0, end)
            rest = joined.slice(end)
            held, num_rows, num_bytes = [rest], rest.num_rows, int(sizes[end:].sum())
    if held:
        yield pa.concat_batches(held) if len(held) > 1 else held[0]
