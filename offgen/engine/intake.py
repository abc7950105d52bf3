"""Where the engine's prompts come from: pulled, never buffered beyond the scheduler's window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from offgen.records import Prompt

PULL = 64  # prompts taken from a plain iterable between two steps: tokenizing more would hold up rows that run


@runtime_checkable
class PromptSource(Protocol):
    """Prompts made elsewhere, such as on a reader's thread."""

    def take(self, max_count: int, *, wait: bool) -> Sequence[Prompt]:
        """At most max_count prompts that are ready; with `wait`, at least one unless there are no more."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """True once every prompt has been taken."""
        ...


class IterableSource:
    """A plain iterable as a source: what is asked for is made on the spot."""

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        self._prompts = iter(prompts)
        self.is_exhausted = False

    def take(self, max_count: int, *, wait: bool) -> Sequence[Prompt]:
        taken: list[Prompt] = []
        for _ in range(min(max_count, PULL)):
            prompt = next(self._prompts, None)
            if prompt is None:
                self.is_exhausted = True
                break
            taken.append(prompt)
        return taken


def as_source(prompts: Iterable[Prompt] | PromptSource) -> PromptSource:
    return prompts if isinstance(prompts, PromptSource) else IterableSource(prompts)
