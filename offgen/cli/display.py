"""Draws a running job on stderr: a live view on a terminal, a plain line every interval elsewhere, or JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from offgen.cli.console import is_terminal, say
from offgen.config import JobConfig
from offgen.job.display import Display, Silent
from offgen.report.terminal import duration, summary_text
from offgen.stats.progress import Snapshot


def open_display(config: JobConfig) -> Display:
    """The display that the options and the terminal call for."""
    display = config.display
    if display.quiet:
        return Silent()
    mode = display.progress
    if mode == "auto":
        mode = "rich" if is_terminal() else "plain"
    if mode == "rich":
        from offgen.cli.live import LiveDisplay

        return LiveDisplay()
    if mode == "json":
        return JsonLines(display.log_interval)
    return Plain(display.log_interval) if mode == "plain" else Notes()


class Notes(Silent):
    """What happens, without progress."""

    def note(self, text: str) -> None:
        say(text)

    def warn(self, text: str) -> None:
        say(f"warning: {text}")

    def summary(self, report: Mapping[str, Any]) -> None:
        say(summary_text(report))


class Pace:
    """True once every interval."""

    def __init__(self, interval_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._now = interval_s, now
        self._due_s = now() + interval_s

    def is_due(self) -> bool:
        now_s = self._now()
        if now_s < self._due_s:
            return False
        self._due_s = max(self._due_s + self._interval_s, now_s)
        return True


class Plain(Notes):
    """A line every interval: for logs, cron and CI."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._pace = Pace(interval_s)

    def begin(self) -> None:
        self._pace = Pace(self._interval_s)

    def show(self, snapshot: Snapshot) -> None:
        if self._pace.is_due():
            say(progress_line(snapshot))


class JsonLines(Silent):
    """One JSON object a line, for programs."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._pace = Pace(interval_s)

    def note(self, text: str) -> None:
        self._say("note", {"text": text})

    def warn(self, text: str) -> None:
        self._say("warning", {"text": text})

    def begin(self) -> None:
        self._pace = Pace(self._interval_s)

    def show(self, snapshot: Snapshot) -> None:
        if self._pace.is_due():
            self._say("progress", asdict(snapshot))

    def summary(self, report: Mapping[str, Any]) -> None:
        self._say("summary", {"report": {name: value for name, value in report.items() if name != "timeline"}})

    def _say(self, event: str, fields: Mapping[str, Any]) -> None:
        say(json.dumps({"event": event, **fields}, ensure_ascii=False))


def progress_line(snapshot: Snapshot) -> str:
    """One moment in one line."""
    total = "?" if snapshot.rows_total is None else f"{snapshot.rows_total:,}"
    parts = [
        f"{snapshot.rows_done:,}/{total} rows",
        f"prefill {snapshot.prefill_tokens_per_s:,.0f} tok/s",
        f"decode {snapshot.decode_tokens_per_s:,.0f} tok/s",
        f"running {snapshot.running:,}",
        f"waiting {snapshot.waiting:,}",
        f"KV {snapshot.kv_used:.0%}",
    ]
    if snapshot.errors:
        parts.append(f"errors {snapshot.errors:,}")
    if snapshot.eta_s is not None:
        parts.append(f"ETA {duration(snapshot.eta_s)}")
    return f"[{duration(snapshot.elapsed_s)}] " + ", ".join(parts)
