"""Any backend with a stopwatch on its ops: what `offgen bench --profile` opens. Adds a few microseconds to each op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch

from offgen.backends.base import Backend, Linear

GEMM, ATTENTION, SMALL_OPS = "gemm", "attention", "small ops"
PARTS = {
    "paged_attention": ATTENTION,
    "rope_and_write_kv": SMALL_OPS,
    "write_kv": SMALL_OPS,
    "rms_norm": SMALL_OPS,
    "add_rms_norm": SMALL_OPS,
    "silu_and_mul": SMALL_OPS,
    "gelu_and_mul": SMALL_OPS,
    "embedding": SMALL_OPS,
}


class TimedLinear:
    """A packed weight that notes how long it takes and what it computes."""

    def __init__(self, linear: Linear, watch: Stopwatch) -> None:
        self._linear = linear
        self._watch = watch
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self._watch.gemm_flop += 2 * (x.numel() // self.in_features) * self.in_features * self.out_features
        out: torch.Tensor = self._watch.timed(GEMM, self._linear)(x)
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._linear, name)


class Stopwatch:
    """Seconds by part, and the floating-point operations of the linears."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.gemm_flop = 0
        self._synchronize = synchronize

    def reset(self) -> None:
        self.seconds.clear()
        self.gemm_flop = 0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            self._synchronize()
            started = perf_counter()
            result = call(*args, **named)
            self._synchronize()
            self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - started
            return result

        return run


class TimedBackend:
    """Passes everything on to `backend`; the ops of PARTS and the linears are timed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.watch = Stopwatch(torch.cuda.synchronize if backend.device.type == "cuda" else lambda: None)
        for name, part in PARTS.items():
            setattr(self, name, self.watch.timed(part, getattr(backend, name)))

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return TimedLinear(self._backend.linear(weight, bias), self.watch)

    def capture(self, forward: Callable[..., Any], *, pads: Mapping[str, int] | None = None) -> Callable[..., Any]:
        return forward  # a graph's inside cannot be timed op by op

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def gemm_limit_flop_s(size: int = 2048, *, repeats: int = 8) -> float:
    """What one large float32 product reaches on this machine's processors, in operations a second."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeats):
        started = perf_counter()
        torch.mm(a, b)
        best = min(best, perf_counter() - started)
    return 2 * size**3 / best
