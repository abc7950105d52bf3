"""Shared by the readers' tests: read an input whole, as rows, as a table, as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from offgen.columns import conform, unify_all
from offgen.readers import Input, Selection, open_input
from offgen.records import Row


class Read:
    """What came out of an input."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    @property
    def ids(self) -> list[int]:
        return [row.row_id for row in self.rows]

    @property
    def values(self) -> list[dict[str, Any]]:
        return [dict(row.values) for row in self.rows]

    @property
    def errors(self) -> dict[int, str]:
        return {row.row_id: str(row.error) for row in self.rows if row.error is not None}

    @property
    def table(self) -> pa.Table:
        schema = unify_all(row.record.schema for row in self.rows)
        return pa.Table.from_batches(
            [conform(row.record, schema).slice(row.index, 1) for row in self.rows], schema=schema
        )


@pytest.fixture
def read() -> Callable[..., Read]:
    def run(
        source: Input | str | list[str],
        needed: list[str] | None = None,
        *,
        selection: Selection | None = None,
        done: set[int] | None = None,
        **options: Any,
    ) -> Read:
        if not isinstance(source, Input):
            source = open_input([source] if isinstance(source, str) else source, **options)
        finished = done or set()
        return Read(list(source.rows(needed or [], selection=selection or Selection(), skip=finished.__contains__)))

    return run
