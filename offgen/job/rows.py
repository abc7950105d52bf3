"""A job's two ends: the input as its options ask for it, and the output checked against it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from offgen.config import JobConfig
from offgen.errors import OffgenError, UsageError
from offgen.job.model_side import ModelSide
from offgen.stats.progress import Progress

if TYPE_CHECKING:
    from offgen.readers import Input, Selection
    from offgen.records import Row
    from offgen.writers import Output
    from offgen.writers.stream import StreamOutput

STDIN = ("-", "/dev/stdin")


def input_of(config: JobConfig) -> Input:
    """Open the input. Raises UsageError for one that cannot be opened."""
    from offgen.readers import open_input

    asked = config.input
    return open_input(
        asked.inputs,
        input_format=asked.input_format,
        subset=asked.subset,
        split=asked.split,
        spool_dir=_state_dir(config) if is_live(config) else None,
        output=Path(config.output.output) if config.output.output not in ("", "-") else None,
    )


def is_live(config: JobConfig) -> bool:
    """Whether rows come from a pipe: they can be read once, and should be answered as they come."""
    return any(path in STDIN for path in config.input.inputs)


def _state_dir(config: JobConfig) -> Path | None:
    """Where a pipe's content is kept for a resume; None for an output that is not resumed."""
    if config.output.output == "-":
        return None
    from offgen.writers.layout import layout_of
    from offgen.writers.options import OutputOptions

    shape = OutputOptions(
        format=config.output.output_format, selection=selection_of(config), is_sharded=config.data.shard is not None
    )
    return layout_of(config.output.output, shape).state_dir


def selection_of(config: JobConfig) -> Selection:
    """The rows that `--skip`, `--limit` and `--shard` leave."""
    from offgen.readers import Selection

    data = config.data
    if data.shard is None:
        return Selection(data.skip, data.limit)
    return Selection(data.skip, data.limit, data.shard.index, data.shard.num_shards)


def output_of(config: JobConfig, model: ModelSide, rows: Input) -> Output | StreamOutput:
    """Check the output's name, options and columns. Raises UsageError; touches nothing on disk."""
    from offgen.writers import OutputOptions, open_output

    asked, params = config.output, model.defaults
    if asked.id_column is not None and asked.id_column not in rows.schema.names and rows.schema.names:
        raise UsageError(f"column `{asked.id_column}` (--id-column) is not in the input")
    options = OutputOptions(
        format=asked.output_format,
        row_order=asked.row_order,
        rows_per_shard=asked.rows_per_shard,
        columns=asked.columns,
        drop_columns=asked.drop_columns,
        column_prefix=asked.column_prefix,
        num_samples=params.n,
        with_token_ids=asked.output_token_ids,
        with_stats=asked.stats,
        with_logprobs=params.logprobs is not None,
        with_prompt_logprobs=params.prompt_logprobs is not None,
        flush_interval_s=config.data.flush_interval,
        selection=selection_of(config),
        is_sharded=config.data.shard is not None,
        model=model.name,
    )
    return open_output(asked.output, options, rows.schema)


def first_row(rows: Input, model: ModelSide, config: JobConfig) -> Row | None:
    """The first selected row, to show its prompt; None for no rows, and for a pipe, which can be read only once."""
    if is_live(config):
        return None
    found = rows.rows(model.needed_columns, selection=selection_of(config), skip=lambda _row_id: False)
    first = next(found, None)
    if isinstance(found, Generator):
        found.close()
    return first


def count_ahead(config: JobConfig, rows: Input, progress: Progress) -> None:
    """Learn how many rows there will be, for the time that is left: at once, or on a thread that counts lines.

    Not for a pipe, and not for remote files, which would be fetched twice.
    """
    selection = selection_of(config)
    if rows.num_rows is not None:
        progress.rows_total = selection.num_selected(rows.num_rows)
    elif not is_live(config) and not any("://" in path for path in config.input.inputs):

        def count() -> None:
            with contextlib.suppress(OffgenError):  # the reader meets it too, and says so
                progress.rows_total = selection.num_selected(rows.count_rows())

        threading.Thread(target=count, name="offgen-counter", daemon=True).start()
