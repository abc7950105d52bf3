"""offgen: offline batch generation with language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offgen.api import Engine
    from offgen.sampling.params import SamplingParams

__version__ = "0.1.0"

__all__ = ["Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Load what is asked for, and torch with it, only then: `offgen --help` must not wait for it."""
    if name == "Engine":
        from offgen.api import Engine

        return Engine
    if name == "SamplingParams":
        from offgen.sampling.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
