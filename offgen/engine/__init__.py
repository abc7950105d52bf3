"""The engine: one model, many rows at once. `open_engine` and `prepare` load torch; `EngineOptions`, `echo` do not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from offgen.engine.options import EngineOptions

if TYPE_CHECKING:
    from offgen.engine.engine import Engine
    from offgen.engine.opening import open_engine, prepare

__all__ = ["Engine", "EngineOptions", "open_engine", "prepare"]


# turns that an idle OpenMP thread spins, about 30 microseconds: longer than the pause between two kernels. GNU's own
# default, several milliseconds, holds a processor that the thread with the work may be waiting for.
SPIN_COUNT = "2000"


def _wait_briefly() -> None:
    """Bound OpenMP's spinning, unless the user chose a way to wait. Read once, when torch loads its runtime."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def __getattr__(name: str) -> Any:
    if name in ("open_engine", "prepare"):
        _wait_briefly()
        from offgen.engine import opening

        return getattr(opening, name)
    if name == "Engine":
        from offgen.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
