"""One measurement of the kernel benchmark: an op at a shape, with its right answer, its bytes, and its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class Case:
    """One op at one shape. `error` runs it on fresh inputs against the reference and returns the relative norm."""

    op: str
    shape: str
    run: Callable[[], Any]
    error: Callable[[], float]
    ceiling: str  # read, copy, gemm, empty
    num_bytes: int = 0
    flops: int = 0
    tolerance: float = 5e-3
    peers: dict[str, Callable[[], Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scale:
    """How large: the real thing, or what the interpreter can do."""

    device: torch.device
    dtype: torch.dtype
    is_small: bool

    def of(self, real: int, small: int) -> int:
        return small if self.is_small else real


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (out.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
    return float("inf") if not bool(out.isfinite().all()) else float(difference)
