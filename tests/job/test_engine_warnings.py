"""A running engine's warnings reach whoever watches the job, each once."""

from __future__ import annotations

from offgen.job.engine_warnings import EngineWarnings
from offgen.stats.engine import EngineStats
from offgen.stats.progress import Progress


def test_each_warning_is_said_once():
    stats, said = EngineStats(), []
    warnings, snapshot = EngineWarnings(stats, said.append), Progress(stats, 0.0).snapshot(1.0)
    warnings.show(snapshot)
    stats.warnings.append("first")
    warnings.show(snapshot)
    stats.warnings.append("second")
    warnings.show(snapshot)
    warnings.show(snapshot)
    assert said == ["first", "second"]
