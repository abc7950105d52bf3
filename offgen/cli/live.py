"""The live view on a terminal, drawn with rich."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from offgen.report.terminal import duration, summary_text
from offgen.stats.progress import Snapshot


class LiveDisplay:
    """A bar and a line of figures that are redrawn; notes scroll by above them."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def warn(self, text: str) -> None:
        self._console.print(Text("warning: ", style="yellow").append(text))

    def begin(self) -> None:
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        if self._live is not None:
            self._live.update(view(snapshot), refresh=True)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def summary(self, report: Mapping[str, Any]) -> None:
        self._console.print(Text(summary_text(report)))


def view(snapshot: Snapshot) -> Group:
    """One moment of a job."""
    total = snapshot.rows_total
    bar = Table.grid(padding=(0, 2), expand=False)
    done = f"{snapshot.rows_done:,}/{'?' if total is None else f'{total:,}'} rows"
    share = "" if not total else f"{snapshot.rows_done / total:.1%}"
    left = "" if snapshot.eta_s is None else f"ETA {duration(snapshot.eta_s)}"
    bar.add_row(
        ProgressBar(total=total or None, completed=snapshot.rows_done, width=32, pulse=total is None),
        Text(done, style="bold"),
        share,
        duration(snapshot.elapsed_s),
        left,
    )
    figures = Table.grid(padding=(0, 2), expand=False)
    figures.add_row(
        _figure("prefill", f"{snapshot.prefill_tokens_per_s:,.0f} tok/s"),
        _figure("decode", f"{snapshot.decode_tokens_per_s:,.0f} tok/s"),
        _figure("running", f"{snapshot.running:,}"),
        _figure("waiting", f"{snapshot.waiting:,}"),
        _figure("KV", f"{snapshot.kv_used:.0%}"),
        _figure("errors", f"{snapshot.errors:,}", style="red" if snapshot.errors else ""),
    )
    return Group(bar, figures)


def _figure(name: str, value: str, style: str = "") -> Text:
    return Text(f"{name} ", style="dim").append(value, style=style or "not dim")
