"""Steps for backends: rows with scattered blocks, caches full of NaN, and the plain-torch backend as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from offgen.backends import AttentionInputs, AttentionSpec, open_backend


@dataclass
class Scene:
    """Rows whose blocks lie scattered in a pool; step() says which of their last tokens are queries."""

    seq_lens: list[int]
    block_size: int = 16
    shared: int = 0  # leading tokens, in whole blocks, that rows after the first take from the first
    seed: int = 0
    tables: torch.Tensor = field(init=False)
    num_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        counts = [-(-length // self.block_size) for length in self.seq_lens]
        self.num_blocks = sum(counts) + 3
        ids = torch.randperm(self.num_blocks, generator=generator).to(torch.int32)
        self.tables = torch.full((len(counts), max(counts) + 1), -1, dtype=torch.int32)
        taken = 0
        for row, count in enumerate(counts):
            self.tables[row, :count] = ids[taken : taken + count]
            taken += count
            common = min(self.shared // self.block_size, count)
            self.tables[row, :common] = self.tables[0, :common]

    def step(
        self, queries: Sequence[int], *, num_decodes: int = 0, rows: Sequence[int] | None = None
    ) -> AttentionInputs:
        """The last queries[i] tokens of each row, or of the rows given, in that order."""
        chosen = list(range(len(self.seq_lens)) if rows is None else rows)
        lengths = [self.seq_lens[row] for row in chosen]
        spans = [torch.arange(length - count, length) for length, count in zip(lengths, queries, strict=True)]
        where = torch.cat([torch.full_like(span, row) for span, row in zip(spans, chosen, strict=True)])
        positions = torch.cat(spans)
        slots = self.tables[where, positions // self.block_size] * self.block_size + positions % self.block_size
        starts = torch.tensor([0, *queries]).cumsum(0)
        return AttentionInputs(
            slots=slots.to(torch.int32),
            positions=positions.to(torch.int32),
            block_tables=self.tables[chosen].contiguous(),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            cu_seqlens_q=starts.to(torch.int32),
            num_decodes=num_decodes,
            max_seq_len=max(lengths),
            block_size=self.block_size,
        )

    def fill(self, backend: Any, spec: AttentionSpec, *, seed: int = 1) -> Any:
        """A cache with every row's keys and values; whatever no token wrote is NaN."""
        cache = backend.allocate_kv(1, self.num_blocks, self.block_size, [spec])[0]
        for name in ("keys", "values", "scales"):
            storage = getattr(cache, name, None)
            if storage is not None:
                storage.fill_(float("nan") if storage.is_floating_point() else 99)
        generator = torch.Generator().manual_seed(seed)
        slots = self.step(self.seq_lens).slots.unique()
        k, v = torch.randn(2, len(slots), spec.num_kv_heads, spec.head_dim, generator=generator)
        nothing = torch.zeros(len(slots), dtype=torch.int32)
        backend.write_kv(k, v, cache, AttentionInputs(slots, nothing, *[nothing] * 3, 0, 0, self.block_size))
        return cache


def open_cpu(**options: Any) -> Any:
    return open_backend("cpu", **{"dtype": "float32", "threads": 2, **options})


def open_oracle(**options: Any) -> Any:
    return open_backend("cpu", **{"dtype": "float32", "attention_backend": "torch", **options})


@pytest.fixture(scope="session")
def cpu() -> Any:
    return open_cpu()


@pytest.fixture(scope="session")
def oracle() -> Any:
    return open_oracle()


@pytest.fixture(scope="session")
def make_scene() -> type[Scene]:
    return Scene


@pytest.fixture(scope="session")
def backend_of() -> Any:
    """backend_of("cpu", kv_cache_dtype="int8"): a backend with options; "torch" is the oracle."""

    def build(name: str, **options: Any) -> Any:
        return {"cpu": open_cpu, "torch": open_oracle}[name](**options)

    return build
