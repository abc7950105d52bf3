"""A report as a few lines of plain text. Knows report.json; knows no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LATENCY_NAMES = (("queue_s", "queue"), ("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "e2e"))
PERCENTILES = ("mean", "p50", "p90", "p99", "max")


def duration(seconds: float | None) -> str:
    """`0:03:20`, or `-` for none."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def summary_text(report: Mapping[str, Any]) -> str:
    """Totals, throughput, latencies, errors: what a person wants to know at the end of a job."""
    lines = [_totals(report), _speed(report), _engine(report), "", *_latency_table(report)]
    if report.get("errors"):
        lines += ["", *_error_table(report["errors"])]
    return "\n".join(lines)


def _totals(report: Mapping[str, Any]) -> str:
    failed = sum(report.get("errors", {}).values())
    rows = f"{report['rows']:,} rows" + (f", {failed:,} of them failed" if failed else "")
    cached = report.get("cached_tokens") or 0
    tokens = f"{report['prompt_tokens']:,} prompt tokens ({cached:,} cached), {report['completion_tokens']:,} generated"
    return f"{rows}; {tokens}"


def _speed(report: Mapping[str, Any]) -> str:
    rate = report.get("completion_tokens_per_s")
    speed = "-" if rate is None else f"{rate:,.1f} generated tokens/s"
    total = report.get("total_tokens_per_s")
    both = "" if total is None else f" ({total:,.1f} with the prompts)"
    runs = report.get("runs", 1)
    over = f" over {runs} runs" if runs > 1 else ""
    times = ", ".join(
        f"{name.removesuffix('_s')} {_seconds(report.get(name))}" for name in ("run_s", "load_s", "wall_s")
    )
    return f"{speed}{both}; {times}{over}"


def _engine(report: Mapping[str, Any]) -> str:
    parts = [
        f"{report.get('steps') or 0:,} steps",
        f"bubble ratio {report.get('bubble_ratio') or 0:.1%}",
        f"{report.get('num_preemptions') or 0:,} preemptions",
    ]
    if report.get("kv_blocks"):
        parts.append(f"KV blocks {report.get('kv_blocks_peak') or 0:,} of {report['kv_blocks']:,} at the peak")
    if report.get("peak_rss_bytes"):
        parts.append(f"memory {report['peak_rss_bytes'] / 2**20:,.0f} MiB at the peak")
    return ", ".join(parts)


def _latency_table(report: Mapping[str, Any]) -> list[str]:
    rows = [["", *PERCENTILES]]
    for name, label in LATENCY_NAMES:
        summary = report.get(name) or {}
        rows.append([label, *(_seconds(summary.get(percentile)) for percentile in PERCENTILES)])
    return aligned(rows)


def _error_table(errors: Mapping[str, int]) -> list[str]:
    rows = [["errors", "rows"]]
    rows += [[kind, f"{count:,}"] for kind, count in sorted(errors.items(), key=lambda item: (-item[1], item[0]))]
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.0995 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"
