"""What shapes an output. Plain data; knows no file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

FORMATS = ("parquet", "arrow", "jsonl", "openai-batch")


class SelectionLike(Protocol):
    """The four numbers of a readers.Selection."""

    @property
    def skip(self) -> int: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def shard_index(self) -> int: ...
    @property
    def num_shards(self) -> int: ...


@dataclass(frozen=True, slots=True)
class AllRows:
    """Every row of the input."""

    skip: int = 0
    limit: int | None = None
    shard_index: int = 0
    num_shards: int = 1


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What the rows of an output look like and how they are cut into shards.

    format             parquet, arrow, jsonl, openai-batch; None: by the output's name, parquet for a folder
    row_order          input, or finish (within a shard)
    columns            pass-through columns to keep, None for all; drop_columns are left out
    column_prefix      before the name of each own column
    num_samples        --n; above 1 there is a column sample_index and a row for each sample
    is_sharded         the output goes to OUTPUT/shard-I-of-N/; more than one shard implies it
    model              what openai-batch lines name
    flush_interval_s   a finished row is on disk after this long; changes no output
    """

    format: str | None = None
    row_order: str = "input"
    rows_per_shard: int = 10_000
    columns: tuple[str, ...] | None = None
    drop_columns: tuple[str, ...] = ()
    column_prefix: str = ""
    num_samples: int = 1
    with_token_ids: bool = False
    with_stats: bool = True
    with_logprobs: bool = False
    with_prompt_logprobs: bool = False
    flush_interval_s: float = 5.0
    selection: SelectionLike = AllRows()
    is_sharded: bool = False
    model: str = ""

    def fingerprint(self, file_format: str) -> dict[str, Any]:
        """What must be the same for a job to be resumed. JSON-able."""
        selection = self.selection
        return {
            "format": file_format,
            "row_order": self.row_order,
            "rows_per_shard": self.rows_per_shard,
            "columns": None if self.columns is None else list(self.columns),
            "drop_columns": list(self.drop_columns),
            "column_prefix": self.column_prefix,
            "num_samples": self.num_samples,
            "with_token_ids": self.with_token_ids,
            "with_stats": self.with_stats,
            "with_logprobs": self.with_logprobs,
            "with_prompt_logprobs": self.with_prompt_logprobs,
            "skip": selection.skip,
            "limit": selection.limit,
            "shard": f"{selection.shard_index}/{selection.num_shards}",
        }


def options_of(described: dict[str, Any]) -> OutputOptions:
    """The options again, as far as `fingerprint` wrote them down: what verify needs to read an output."""
    index, _, count = str(described["shard"]).partition("/")
    kept = {name: described[name] for name in asdict(OutputOptions()) if name in described}
    columns = described["columns"]
    return OutputOptions(
        **{
            **kept,
            "format": described["format"],
            "columns": None if columns is None else tuple(columns),
            "drop_columns": tuple(described["drop_columns"]),
            "selection": AllRows(described["skip"], described["limit"], int(index), int(count)),
        }
    )
