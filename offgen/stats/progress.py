"""Where a job stands: rows, rates and the time that is left. Read by the live view, the log line and the metrics."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from offgen.stats.engine import EngineStats
from offgen.stats.timeline import Reading, Timeline

RATE_WINDOW_S = 5.0  # rates are over this much of the past: shorter is noise, longer hides a change


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a job. Rates are over the last few seconds; kv_used is a share of the pool."""

    elapsed_s: float
    rows_done: int
    rows_total: int | None
    errors: int
    prefill_tokens: int
    sampled_tokens: int
    cached_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    running: int
    waiting: int
    kv_used: float
    num_preemptions: int
    eta_s: float | None


@dataclass(slots=True)
class Progress:
    """Counts of one run. `count` is called by the job's loop, `snapshot` by one watching thread."""

    stats: EngineStats
    started_s: float  # of the clock that `snapshot` is given
    rows_before: int = 0  # finished by earlier runs
    errors_before: int = 0
    rows_total: int | None = None
    rows: int = 0
    errors: int = 0
    timeline: Timeline = field(default_factory=Timeline)
    _recent: deque[Reading] = field(default_factory=deque)
    _open_rows: dict[int, tuple[int, bool]] = field(default_factory=dict)  # row id: samples to come, has one failed

    @property
    def rows_done(self) -> int:
        """Rows of the output that are finished, earlier runs included."""
        return self.rows_before + self.rows

    @property
    def all_errors(self) -> int:
        return self.errors_before + self.errors

    def count(self, row_id: int, num_samples: int, *, failed: bool) -> None:
        """One more completion; a row is finished with the last of its samples, and failed if one of them did."""
        if num_samples > 1:
            left, had_failed = self._open_rows.pop(row_id, (num_samples, False))
            failed = failed or had_failed
            if left > 1:
                self._open_rows[row_id] = (left - 1, failed)
                return
        self.rows += 1
        self.errors += failed

    def snapshot(self, now_s: float) -> Snapshot:
        """Read the counters, and remember them in the timeline."""
        stats = self.stats
        elapsed_s = now_s - self.started_s
        reading = Reading(
            t_s=elapsed_s,
            running=stats.running,
            waiting=stats.waiting,
            kv_used=stats.kv_blocks_used / stats.kv_blocks if stats.kv_blocks else 0.0,
            prefill_tokens=stats.prefill_tokens,
            sampled_tokens=stats.sampled_tokens,
        )
        self.timeline.add(reading)
        first = self._window(reading)
        width_s = max(reading.t_s - first.t_s, 1e-9)
        return Snapshot(
            elapsed_s=elapsed_s,
            rows_done=self.rows_done,
            rows_total=self.rows_total,
            errors=self.all_errors,
            prefill_tokens=stats.prefill_tokens,
            sampled_tokens=stats.sampled_tokens,
            cached_tokens=stats.cached_tokens,
            prefill_tokens_per_s=(reading.prefill_tokens - first.prefill_tokens) / width_s,
            decode_tokens_per_s=(reading.sampled_tokens - first.sampled_tokens) / width_s,
            running=reading.running,
            waiting=reading.waiting,
            kv_used=reading.kv_used,
            num_preemptions=stats.num_preemptions,
            eta_s=self._eta_s(elapsed_s),
        )

    def _window(self, reading: Reading) -> Reading:
        """The reading that is about RATE_WINDOW_S old."""
        if not self._recent:
            self._recent.append(Reading(0.0, 0, 0, 0.0, 0, 0))
        self._recent.append(reading)
        while len(self._recent) > 2 and reading.t_s - self._recent[1].t_s >= RATE_WINDOW_S:
            self._recent.popleft()
        return self._recent[0]

    def _eta_s(self, elapsed_s: float) -> float | None:
        if self.rows_total is None or not self.rows or elapsed_s <= 0:
            return None
        return max(self.rows_total - self.rows_done, 0) * elapsed_s / self.rows
