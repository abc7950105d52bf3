"""The engine: one model, many rows at once. `open_engine` loads torch; `EngineOptions` and `echo` do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offgen.engine.options import EngineOptions

if TYPE_CHECKING:
    from offgen.engine.engine import Engine
    from offgen.engine.opening import open_engine

__all__ = ["Engine", "EngineOptions", "open_engine"]


def __getattr__(name: str) -> Any:
    if name == "open_engine":
        from offgen.engine.opening import open_engine

        return open_engine
    if name == "Engine":
        from offgen.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
