"""Fixtures for the tests of the writers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from writer_jobs import Job, table_of

from offgen.writers import OutputOptions


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """Makes a job: `job("out.parquet", num_rows=10)`."""

    def make(name: str, num_rows: int = 10, table: pa.Table | None = None, **kwargs: Any) -> Job:
        options = OutputOptions(**{"rows_per_shard": 4, **kwargs.pop("options", {})})
        return Job(str(tmp_path / name), table if table is not None else table_of(num_rows), options, **kwargs)

    return make
