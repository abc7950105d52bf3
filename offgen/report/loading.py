"""Finds report.json of an output: a folder, a single file, or the parent of shards, whose reports it adds up."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offgen.errors import UsageError
from offgen.stats.histogram import LogHistogram
from offgen.stats.timeline import GAUGES, MAX_POINTS, RATES

LATENCIES = ("queue_s", "ttft_s", "tpot_s", "e2e_s")
_ADDED = (
    "rows", "prompt_tokens", "completion_tokens", "cached_tokens", "load_s", "run_s", "wall_s", "runs", "steps",
    "out_of_memory_steps", "num_preemptions", "recomputed_tokens", "prefill_tokens", "kv_blocks", "kv_blocks_peak",
)  # fmt: skip
_LARGEST = ("peak_rss_bytes", "peak_device_bytes")
_SAME = ("device", "dtype", "versions", "model", "commit", "engine")
_SHARD = re.compile(r"shard-(\d+)-of-(\d+)")


def load_report(output: str) -> dict[str, Any]:
    """The report of the job that wrote `output`. Raises UsageError where there is none."""
    path = Path(output)
    own = _own_report(path)
    if own is not None:
        return own
    shards = _shards(path)
    if shards:
        return _of_shards(path, shards)
    if not path.exists() and not _state_dir(path).exists():
        raise UsageError(f"{output}: no such output")
    raise UsageError(
        f"{output}: no report there", hint="a job writes it when it ends; OUTPUT is what `offgen run` was given with -o"
    )


def _state_dir(path: Path) -> Path:
    return path.with_name(path.name + ".offgen")


def _own_report(path: Path) -> dict[str, Any] | None:
    candidates = [path / "_offgen" / "report.json", _state_dir(path) / "report.json", path / "report.json"]
    if path.suffix == ".json":
        candidates.append(path)
    for candidate in candidates:
        if candidate.is_file():
            return _read(candidate)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UsageError(f"{path}: cannot be read: {problem}") from problem
    if not isinstance(report, dict) or "rows" not in report:
        raise UsageError(f"{path}: not a report of offgen")
    return report


def _shards(path: Path) -> dict[int, dict[int, Path]]:
    """Number of shards -> index -> folder."""
    found: dict[int, dict[int, Path]] = {}
    for folder in path.iterdir() if path.is_dir() else ():
        match = _SHARD.fullmatch(folder.name)
        if match is not None and folder.is_dir():
            found.setdefault(int(match[2]), {})[int(match[1])] = folder
    return found


def _of_shards(path: Path, shards: Mapping[int, Mapping[int, Path]]) -> dict[str, Any]:
    if len(shards) > 1:
        raise UsageError(f"{path}: shards of {' and of '.join(map(str, sorted(shards)))} lie side by side")
    ((num_shards, folders),) = shards.items()
    reports = {index: _own_report(folder) for index, folder in sorted(folders.items())}
    there = {index: report for index, report in reports.items() if report is not None}
    if not there:
        raise UsageError(f"{path}: none of its shards has a report yet")
    merged = merge_reports(list(there.values()))
    merged["shards"] = {"count": num_shards, "missing": [index for index in range(num_shards) if index not in there]}
    if merged["shards"]["missing"]:
        merged["status"] = "unfinished"
    return merged


def merge_reports(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The report of several shards together. Times add up, as those of resumed runs do: they are machine time."""
    merged: dict[str, Any] = {name: sum(report.get(name) or 0 for report in reports) for name in _ADDED}
    merged["errors"] = _added([report.get("errors", {}) for report in reports])
    merged["spans_s"] = _added([report.get("spans_s", {}) for report in reports])
    run_s = merged["run_s"]
    merged["completion_tokens_per_s"] = merged["completion_tokens"] / run_s if run_s else None
    merged["total_tokens_per_s"] = (merged["prompt_tokens"] + merged["completion_tokens"]) / run_s if run_s else None
    histograms = {name: LogHistogram() for name in LATENCIES}
    for report in reports:
        for name, histogram in histograms.items():
            stored = report.get("histograms", {}).get(name)
            if stored is not None:
                histogram.merge(LogHistogram.from_dict(stored))
    merged |= {name: histogram.summary() for name, histogram in histograms.items()}
    merged["histograms"] = {name: histogram.to_dict() for name, histogram in histograms.items()}
    sums = _added([report.get("sums", {}) for report in reports])
    merged["sums"] = sums
    merged["bubble_ratio"] = 1 - sums["sampled_tokens"] / sums["places"] if sums.get("places") else 0.0
    merged |= {name: max((report.get(name) or 0 for report in reports), default=0) or None for name in _LARGEST}
    merged |= {name: reports[0].get(name) for name in _SAME}
    states = {report.get("status") for report in reports}
    merged["status"] = "finished" if states == {"finished"} else "unfinished"
    merged["timeline"] = _side_by_side([report.get("timeline", []) for report in reports])
    return merged


def _added(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: sum(one.get(name, 0) for one in counts) for name in dict.fromkeys(key for one in counts for key in one)
    }


def _side_by_side(timelines: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What all shards did at the same time after their start."""
    end_s = max((points[-1]["t_s"] for points in timelines if points), default=0.0)
    num_points = min(MAX_POINTS, max((len(points) for points in timelines), default=0))
    merged = []
    for step in range(1, num_points + 1):
        t_s = end_s * step / num_points
        now = [next((point for point in points if point["t_s"] >= t_s), None) for points in timelines]
        point: dict[str, Any] = {"t_s": round(t_s, 3)}
        for name in (*GAUGES, *RATES):
            point[name] = sum(one[name] for one in now if one is not None)
        point["kv_used"] = round(point["kv_used"] / len(timelines), 4)
        merged.append(point)
    return merged
