"""What a job would find here: versions, the machine, the models at hand, the options that are not built."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from offgen.config.availability import NOT_BUILT
from offgen.report.provenance import commit, versions


def surroundings() -> dict[str, Any]:
    """JSON-able."""
    from offgen.checkpoints.cache import cache_folder
    from offgen.checkpoints.resolve import ALIASES
    from offgen.engine.machine import describe_machine

    return {
        "versions": versions(),
        "commit": commit(),
        **describe_machine(),
        "models": {alias: _has_package(requirement) for alias, (_, requirement) in ALIASES.items()},
        "cache": str(cache_folder()),
        "not_available_yet": [
            f"--{name.replace('_', '-')}" + ("" if values is None else f" {'|'.join(sorted(values))}")
            for name, values in NOT_BUILT.items()
        ],
    }


def _has_package(requirement: str) -> str:
    name = requirement.split("==")[0]
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"not installed (pip install --no-deps {requirement})"
    return "installed"
