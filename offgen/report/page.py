"""A report as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from offgen.report.charts import Series, bar_chart, line_chart
from offgen.report.terminal import LATENCY_NAMES, summary_text

STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #667085; --line: #d8dde6; --paper: #fff;
  --a: #2563eb; --b: #d97706; --c: #059669; --d: #9333ea; --e: #dc2626; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #333b4a; --paper: #12161f;
  --a: #7aa2ff; --b: #f0b35a; --c: #4fd1a1; --d: #c69cff; --e: #ff8080; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1360px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .75rem; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.25rem; } .card span { color: var(--soft); font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: .6rem; }
figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 1.8; }
.tick, .value, .label, .y { fill: var(--soft); font-size: 10px; text-anchor: middle; } .y { text-anchor: end; }
.label { font-weight: 600; }
.a { stroke: var(--a); } .b { stroke: var(--b); } .c { stroke: var(--c); }
.bar.s0 { fill: var(--a); } .bar.s1 { fill: var(--b); } .bar.s2 { fill: var(--c); } .bar.s3 { fill: var(--d); }
.bar.s4 { fill: var(--e); }
.key { font-weight: 400; font-size: .85rem; margin-left: .8rem; border-bottom: 3px solid; }
.key.a { border-color: var(--a); } .key.b { border-color: var(--b); } .key.c { border-color: var(--c); }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .9rem .2rem 0; vertical-align: top; }
th { font-weight: 600; color: var(--soft); } pre { overflow: auto; }
"""


def report_page(report: Mapping[str, Any], *, title: str) -> str:
    """The whole page."""
    sections = [
        f"<h1>{escape(title)}</h1>",
        _cards(report),
        f'<h2>Over time</h2><div class="charts">{"".join(_timeline_charts(report.get("timeline", [])))}</div>',
        f'<h2>Latency</h2><div class="charts">{_latency_chart(report)}</div>',
        _errors(report.get("errors", {})),
        _spans(report.get("spans_s", {})),
        _facts(report),
        f"<h2>As text</h2><pre>{escape(summary_text(report))}</pre>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _cards(report: Mapping[str, Any]) -> str:
    failed = sum(report.get("errors", {}).values())
    cards = [
        ("rows", f"{report['rows']:,}"),
        ("failed", f"{failed:,}"),
        ("generated tokens/s", _amount(report.get("completion_tokens_per_s"))),
        ("generated tokens", f"{report['completion_tokens']:,}"),
        ("prompt tokens", f"{report['prompt_tokens']:,}"),
        ("of them cached", f"{report.get('cached_tokens') or 0:,}"),
        ("run", _amount(report.get("run_s"), " s")),
        ("wall", _amount(report.get("wall_s"), " s")),
        ("bubble ratio", f"{report.get('bubble_ratio') or 0:.1%}"),
        ("preemptions", f"{report.get('num_preemptions') or 0:,}"),
    ]
    made = (f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in cards)
    return f'<div class="cards">{"".join(made)}</div>'


def _timeline_charts(points: Sequence[Mapping[str, Any]]) -> list[str]:
    x = [point["t_s"] for point in points]

    def values(name: str) -> list[float]:
        return [point[name] for point in points]

    return [
        line_chart("Decode, tokens/s", x, [Series("decode", "a", values("decode_tokens_per_s"))]),
        line_chart("Prefill, tokens/s", x, [Series("prefill", "b", values("prefill_tokens_per_s"))]),
        line_chart("Occupancy, rows running", x, [Series("running", "a", values("running"))]),
        line_chart("Rows waiting", x, [Series("waiting", "b", values("waiting"))]),
        line_chart(
            "KV cache in use",
            x,
            [Series("share of blocks", "c", [100 * v for v in values("kv_used")])],
            unit="%",
            top=100,
        ),
    ]


def _latency_chart(report: Mapping[str, Any]) -> str:
    groups = []
    for name, label in LATENCY_NAMES:
        summary = report.get(name) or {}
        bars = [(key, None if summary.get(key) is None else 1000 * summary[key]) for key in ("p50", "p90", "p99")]
        groups.append((label, bars))
    return bar_chart("Percentiles per row", groups, unit=" ms")


def _errors(errors: Mapping[str, int]) -> str:
    if not errors:
        return ""
    ordered = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    return "<h2>Errors</h2>" + _table([("type", "rows"), *((kind, f"{count:,}") for kind, count in ordered)])


def _spans(spans: Mapping[str, float]) -> str:
    total = sum(spans.values())
    if not total:
        return ""
    rows = [
        (name, f"{seconds:.2f} s", f"{seconds / total:.1%}")
        for name, seconds in sorted(spans.items(), key=lambda i: -i[1])
    ]
    return "<h2>Where the time went</h2>" + _table([("part of a step", "time", "share"), *rows])


def _facts(report: Mapping[str, Any]) -> str:
    facts = [(name, report.get(name)) for name in ("model", "device", "dtype", "status", "runs", "steps", "commit")]
    facts += [(f"{name} version", value) for name, value in (report.get("versions") or {}).items()]
    rows = [(name, str(value)) for name, value in facts if value is not None]
    return "<h2>With what</h2>" + _table([("", ""), *rows])


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return "<table>" + "".join(lines) + "</table>"


def _amount(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:,.1f}{unit}"
