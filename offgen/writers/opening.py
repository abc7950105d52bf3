"""`open_output`: an output by its name. Checks all that can be checked without touching the disk."""

from __future__ import annotations

import pyarrow as pa

from offgen.errors import UsageError
from offgen.writers.disk import Disk
from offgen.writers.formats import check_storable
from offgen.writers.layout import layout_of
from offgen.writers.options import FORMATS, OutputOptions
from offgen.writers.output import Output
from offgen.writers.schema import OutputSchema
from offgen.writers.shard import Shop
from offgen.writers.stream import StreamOutput

STDOUT = "-"


def open_output(
    output: str, options: OutputOptions, input_schema: pa.Schema, *, disk: Disk | None = None
) -> Output | StreamOutput:
    """The output named `output`: a folder, a file, or `-`.

    Raises UsageError for a name or a format that cannot be, for columns that clash with ours and for types that the
    format has no place for. `disk` is for tests.
    """
    if options.format is not None and options.format not in FORMATS:
        raise UsageError(f"--output-format {options.format}: is not one of {', '.join(FORMATS)}")
    schema = OutputSchema(options, input_schema)
    if output == STDOUT:
        if options.format not in {None, "jsonl", "openai-batch"}:
            raise UsageError(f"--output-format {options.format}: stdout takes jsonl or openai-batch")
        return StreamOutput(options, schema)
    layout = layout_of(output, options)
    check_storable(layout.format, schema.pass_through)
    return Output(Shop(disk or Disk(), layout, options, schema))
