"""Tensors without files: random numbers in the shapes a family asks for, or the shapes alone. Knows no family."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

from offgen.errors import UsageError
from offgen.models.weights import CheckpointFiles


class RandomTensors:
    """`--load-format dummy`: the same values in every run on one kind of device, by a tensor's name and shape."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def has(self, name: str) -> bool:
        return not name.endswith("lm_head.weight") and not name.endswith("lm_head.bias")

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
        values = torch.empty(tuple(shape), dtype=torch.float32)
        self.take_into(name, values)
        return values if dtype is None else values.to(dtype)

    def take_into(self, name: str, out: torch.Tensor) -> None:
        """Drawn where `out` lies: a card takes seconds for what a processor takes minutes for, and draws otherwise."""
        if name.endswith("norm.weight"):
            out.fill_(1.0)
            return
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator(out.device).manual_seed(int.from_bytes(digest[:7], "little"))
        if out.device.type == "cpu":  # in float32 whatever the dtype, so that a model's dtypes are comparable
            out.copy_(torch.randn(out.shape, generator=generator) * 0.02)
        else:
            out.normal_(std=0.02, generator=generator)

    def take_mapped(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        return self.take(name, shape, None)


class ShapeCheck:
    """A dry run of a builder: hands out tensors without storage and notes what the files lack or have in another shape.

    Without files it only lets a builder say what the model's shape is.
    """

    def __init__(self, files: CheckpointFiles | None) -> None:
        self._stored = {} if files is None else files.tensors
        self._has_files = files is not None
        self.missing: list[str] = []
        self.misshapen: list[str] = []
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._stored

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
        self.used.add(name)
        stored = self._stored.get(name)
        if stored is None:
            self.missing.append(name)
        elif stored.shape != tuple(shape):
            self.misshapen.append(f"`{name}` has shape {list(stored.shape)}, config.json asks for {list(shape)}")
        return torch.empty(tuple(shape), dtype=dtype or torch.float32, device="meta")

    def take_into(self, name: str, out: torch.Tensor) -> None:
        self.take(name, out.shape, out.dtype)

    def take_mapped(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        return self.take(name, shape, None)

    def raise_faults(self, folder: object, ignored: Iterable[str] = ()) -> None:
        """UsageError for tensors that are missing, of another shape, or in the files and never asked for."""
        if not self._has_files:
            return
        if self.missing:
            raise UsageError(f"{folder}: {_several('tensor', self.missing)} missing from the weights")
        if self.misshapen:
            more = f" (and {len(self.misshapen) - 1} more)" if len(self.misshapen) > 1 else ""
            raise UsageError(f"{folder}: {self.misshapen[0]}{more}")
        unused = sorted(set(self._stored) - self.used - set(ignored))
        if unused:
            raise UsageError(
                f"{folder}: {_several('tensor', unused)} in the weights, and the architecture has no use for that",
                hint="config.json may belong to another model; `--model-impl transformers` may know this one",
            )


def _several(noun: str, names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''} ({shown}{', …' if len(names) > 3 else ''})"
