"""Makes report.json of what the writer and the engine counted, summed over the runs of a resumed job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from offgen.stats.engine import EngineStats
from offgen.stats.histogram import LogHistogram
from offgen.stats.progress import Snapshot
from offgen.stats.timeline import Timeline, thinned

LATENCIES = ("queue_s", "ttft_s", "tpot_s", "e2e_s")

# what adds up over runs; `places` is the sum of (steps that sample x the most rows that ran at once), for bubble_ratio
SUMS = (
    "load_s", "run_s", "wall_s", "steps", "out_of_memory_steps", "num_preemptions", "recomputed_tokens",
    "prefill_tokens", "sampled_tokens", "places",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run of the job, in this process."""

    load_s: float
    run_s: float
    wall_s: float
    stats: EngineStats
    timeline: Timeline

    def sums(self) -> dict[str, float]:
        stats = self.stats
        return {
            "load_s": self.load_s,
            "run_s": self.run_s,
            "wall_s": self.wall_s,
            "steps": stats.steps,
            "out_of_memory_steps": stats.out_of_memory_steps,
            "num_preemptions": stats.num_preemptions,
            "recomputed_tokens": stats.recomputed_tokens,
            "prefill_tokens": stats.prefill_tokens,
            "sampled_tokens": stats.sampled_tokens,
            "places": stats.sampling_steps * stats.max_running,
        }


class OutputTotals(Protocol):
    """What the output holds, over all runs (the writer's Totals)."""

    @property
    def rows(self) -> int: ...

    @property
    def errors(self) -> dict[str, int]: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...

    @property
    def latencies(self) -> dict[str, LogHistogram]: ...


@dataclass(frozen=True, slots=True)
class Glance:
    """Totals of a run under way, as far as counting alone tells: what earlier runs left, and this one's tokens."""

    rows: int
    errors: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    latencies: dict[str, LogHistogram]

    @classmethod
    def of(cls, snapshot: Snapshot, earlier: Mapping[str, Any]) -> Glance:
        return cls(
            rows=snapshot.rows_done,
            errors=dict(earlier.get("errors", {})),
            prompt_tokens=earlier.get("prompt_tokens", 0) + snapshot.prefill_tokens + snapshot.cached_tokens,
            completion_tokens=earlier.get("completion_tokens", 0) + snapshot.sampled_tokens,
            cached_tokens=earlier.get("cached_tokens", 0) + snapshot.cached_tokens,
            latencies={name: LogHistogram.from_dict(one) for name, one in earlier.get("histograms", {}).items()},
        )


def make_report(
    totals: OutputTotals, run: RunFigures, earlier: Mapping[str, Any] | None, about: Mapping[str, Any]
) -> dict[str, Any]:
    """One job's report. `earlier` is the report of its runs before this one, `about` says with what it ran."""
    earlier = earlier or {}
    before = earlier.get("sums", {})
    sums = {name: before.get(name, 0) + value for name, value in run.sums().items()}
    stats, run_s, places = run.stats, sums["run_s"], sums["places"]
    timeline = [*earlier.get("timeline", []), *run.timeline.points(offset_s=before.get("run_s", 0.0))]
    return {
        "rows": totals.rows,
        "errors": dict(totals.errors),
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "cached_tokens": totals.cached_tokens,
        "load_s": sums["load_s"],
        "run_s": run_s,
        "wall_s": sums["wall_s"],
        "runs": earlier.get("runs", 0) + 1,
        "completion_tokens_per_s": _rate(totals.completion_tokens, run_s),
        "total_tokens_per_s": _rate(totals.prompt_tokens + totals.completion_tokens, run_s),
        **{name: totals.latencies.get(name, LogHistogram()).summary() for name in LATENCIES},
        "steps": sums["steps"],
        "bubble_ratio": max(0.0, 1 - sums["sampled_tokens"] / places) if places else 0.0,
        "out_of_memory_steps": sums["out_of_memory_steps"],
        "num_preemptions": sums["num_preemptions"],
        "recomputed_tokens": sums["recomputed_tokens"],
        "prefill_tokens": sums["prefill_tokens"],
        "kv_blocks": stats.kv_blocks,
        "kv_blocks_peak": max(stats.kv_blocks_peak, earlier.get("kv_blocks_peak", 0)),
        "spans_s": _added(earlier.get("spans_s", {}), stats.spans_s),
        **about,
        "timeline": thinned(timeline),
        "sums": sums,
        "histograms": {name: histogram.to_dict() for name, histogram in totals.latencies.items()},
    }


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}
