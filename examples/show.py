"""Print the completions of an output file: `python examples/show.py out/demo.parquet`."""

import sys

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

rows = pq.read_table(sys.argv[1]).to_pylist()
table = Table(title=f"{len(rows)} rows of {sys.argv[1]}", show_lines=True)
for name in ("row_id", "prompt", "completion", "finish_reason"):
    table.add_column(name, overflow="fold", max_width=60)
for row in rows[:24]:
    table.add_row(*(str(row[name]) for name in ("row_id", "prompt", "completion", "finish_reason")))
Console().print(table)
