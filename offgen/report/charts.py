"""Line and bar charts as inline SVG. Knows numbers and labels; knows no report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 28


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its label, its CSS class (colour), its values."""

    label: str
    style: str
    values: Sequence[float]


def line_chart(
    title: str, x: Sequence[float], series: Sequence[Series], *, unit: str = "", top: float | None = None
) -> str:
    """A figure with one line per series over x (seconds)."""
    high = top if top is not None else max((value for one in series for value in one.values), default=0) or 1
    end = x[-1] if x and x[-1] > 0 else 1
    parts = [*_grid(high, unit), *_time_axis(end)]
    for one in series:
        points = " ".join(f"{_x(at, end):.1f},{_y(value, high):.1f}" for at, value in zip(x, one.values, strict=True))
        parts.append(f'<polyline class="line {one.style}" points="{points}"/>')
    return _figure(title, series, parts)


def bar_chart(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, float | None]]]], *, unit: str) -> str:
    """A figure with a group of bars for each label, on a scale of its own each, values written above."""
    parts: list[str] = []
    slot = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    for place, (label, bars) in enumerate(groups):
        known = [value for _, value in bars if value is not None]
        high = max(known, default=0) or 1
        width = slot / (len(bars) + 1)
        start = LEFT + place * slot + width / 2
        for index, (name, value) in enumerate(bars):
            height = (HEIGHT - TOP - BOTTOM - 26) * (value or 0) / high
            left, base = start + index * width, HEIGHT - BOTTOM - 12
            parts.append(
                f'<rect class="bar s{index}" x="{left:.1f}" y="{base - height:.1f}" width="{width * 0.8:.1f}"'
                f' height="{height:.1f}"><title>{escape(label)} {escape(name)}: {_number(value)}{unit}</title></rect>'
                f'<text class="value" x="{left + width * 0.4:.1f}" y="{base - height - 3:.1f}">{_number(value)}</text>'
                f'<text class="tick" x="{left + width * 0.4:.1f}" y="{base + 11:.1f}">{escape(name)}</text>'
            )
        parts.append(
            f'<text class="label" x="{LEFT + (place + 0.5) * slot - width * 0.1:.1f}" y="{HEIGHT - 4}">'
            f"{escape(label)} ({unit})</text>"
        )
    return _figure(title, [], parts)


def _figure(title: str, series: Sequence[Series], parts: Sequence[str]) -> str:
    legend = "".join(f'<span class="key {one.style}">{escape(one.label)}</span>' for one in series)
    return (
        f"<figure><figcaption>{escape(title)} {legend}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def _grid(high: float, unit: str) -> list[str]:
    parts = []
    for step in range(5):
        value = high * step / 4
        y = _y(value, high)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{y + 3:.1f}">{_number(value)}{unit}</text>')
    return parts


def _time_axis(end: float) -> list[str]:
    return [
        f'<text class="tick" x="{_x(end * step / 4, end):.1f}" y="{HEIGHT - 8}">{_number(end * step / 4)} s</text>'
        for step in range(5)
    ]


def _x(value: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / end


def _y(value: float, high: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / high, 1)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"
