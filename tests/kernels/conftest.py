"""Paged caches for kernel tests, on the GPU if there is one, else for Triton's interpreter (see tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch


@dataclass
class Paged:
    """Rows of keys and values scattered over a NaN-filled pool, and the same in reference.py's layout."""

    kv: torch.Tensor  # [2, num_blocks, block_size, G, D]
    block_tables: torch.Tensor
    seq_lens: torch.Tensor


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def dots_in_order(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's products add along k in one order for all rows.

    It leaves them to numpy's BLAS, where on some processors a row's bits depend on its place among the others. What is
    left for a test of bits is the kernel's own structure; a GPU runs it as it is.
    """
    if device.type == "cpu":
        from triton.runtime import interpreter

        def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
            total = d.data.copy()
            for k in range(a.data.shape[-1]):
                total += a.data[..., :, k, None] * b.data[..., None, k, :]
            return interpreter.TensorHandle(total, d.dtype.scalar)

        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.fixture
def make_paged(device: torch.device) -> Callable[..., Paged]:
    def make(
        seq_lens: list[int],
        *,
        num_kv_heads: int,
        head_dim: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        heads_first: bool = False,
        seed: int = 0,
    ) -> Paged:
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-n // block_size) for n in seq_lens]
        num_blocks = sum(counts) + 2
        shape = (2, num_blocks, block_size, num_kv_heads, head_dim)
        kv = torch.full(shape, float("nan"), dtype=dtype)
        ids = torch.randperm(num_blocks, generator=generator).to(torch.int32)
        tables = torch.full((len(seq_lens), max(counts, default=0) + 1), -1, dtype=torch.int32)
        used = 0
        for row, (length, count) in enumerate(zip(seq_lens, counts, strict=True)):
            tables[row, :count] = ids[used : used + count]
            used += count
            for token in range(length):
                block, slot = int(tables[row, token // block_size]), token % block_size
                kv[:, block, slot] = torch.randn(2, num_kv_heads, head_dim, generator=generator).to(dtype)
        if heads_first:
            kv = kv.transpose(2, 3).contiguous().transpose(2, 3)
        return Paged(kv.to(device), tables.to(device), torch.tensor(seq_lens, dtype=torch.int32, device=device))

    return make
