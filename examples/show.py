"""Print the first completions of an output file: `python examples/show.py out/demo.parquet`."""

import sys

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

ROWS, WIDTH = 6, 180

rows = pq.read_table(sys.argv[1], columns=["prompt", "completion", "finish_reason"]).to_pylist()
table = Table(title=f"{ROWS} of {len(rows)} rows of {sys.argv[1]}", show_lines=True)
for name in ("prompt", "completion", "finish_reason"):
    table.add_column(name, overflow="fold")
for row in rows[:ROWS]:
    texts = [" ".join(str(value).split()) for value in row.values()]
    table.add_row(*(text if len(text) <= WIDTH else text[:WIDTH] + "…" for text in texts))
Console().print(table)
