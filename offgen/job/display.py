"""What a job tells whoever watches it. The command line draws it; a program may pass one that says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from offgen.stats.progress import Snapshot


class Display(Protocol):
    """`show` is called from a thread of its own, the rest by the job."""

    def note(self, text: str) -> None:
        """Something worth knowing; may be several lines."""
        ...

    def warn(self, text: str) -> None:
        """Something that needs a person, but does not stop the job."""
        ...

    def begin(self) -> None:
        """The first step is about to run: snapshots follow."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Where the job stands, about twice a second."""
        ...

    def end(self) -> None:
        """No more snapshots."""
        ...

    def summary(self, report: Mapping[str, Any]) -> None:
        """What a finished job did."""
        ...


class Silent:
    """Says nothing."""

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def begin(self) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...

    def end(self) -> None: ...

    def summary(self, report: Mapping[str, Any]) -> None: ...
