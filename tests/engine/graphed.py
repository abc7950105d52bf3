"""A CPU backend that records steps as a GPU does: a graph reads static inputs, and clobbers what others gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from offgen_kernels import reference_sampling

from offgen.backends.base import Arrived
from offgen.backends.cuda_graphs import StepGraphs

SPLIT = 64


def tensors(output: Any) -> tuple[torch.Tensor, ...]:
    return (output,) if isinstance(output, torch.Tensor) else tuple(output)


@dataclass
class Recorded:
    """Plays the recorded run, and only that, into the tensors it returned when it was recorded."""

    run: Any
    capture: FakeCapture
    output: Any = None
    num_replays: int = 0

    def __post_init__(self) -> None:
        whole = self.run()  # a real capture runs nothing: nothing of what this makes is left
        copies = tuple(one.clone() for one in tensors(whole))
        self.output = copies[0] if isinstance(whole, torch.Tensor) else copies
        self.spoil()

    def spoil(self) -> None:
        for one in tensors(self.output):
            one.fill_(float("nan") if one.is_floating_point() else 1)

    def replay(self) -> None:
        self.num_replays += 1
        for other in self.capture.recorded:
            other.spoil()  # graphs share their memory
        for kept, made in zip(tensors(self.output), tensors(self.run()), strict=True):
            kept.copy_(made)


@dataclass
class FakeCapture:
    recorded: list[Recorded] = field(default_factory=list)

    def __call__(self, run: Any) -> Recorded:
        self.recorded.append(Recorded(run, self))
        return self.recorded[-1]

    @property
    def num_replays(self) -> int:
        return sum(one.num_replays for one in self.recorded)


class GraphedBackend:
    """`backend` with graphs, a sampling op and a step launched ahead."""

    steps_ahead = 1
    sample_op = staticmethod(reference_sampling.sample)

    def __init__(self, backend: Any, step_shape: str = "mixed") -> None:
        self._backend = backend
        self.step_shape = step_shape
        self.captures: dict[str, FakeCapture] = {}  # forward, whole
        self.graphs: dict[str, StepGraphs] = {}

    def capture(self, forward: Any, *, pads: Any = None) -> StepGraphs:
        name = "whole" if pads else "forward"
        self.captures[name] = FakeCapture()
        self.graphs[name] = StepGraphs(
            forward, self.captures[name], device=torch.device("cpu"), split_tokens=SPLIT, pads=pads
        )
        return self.graphs[name]

    def download(self, tensor: torch.Tensor) -> Arrived:
        return Arrived(tensor.clone())  # in stream order: before the next step is launched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
