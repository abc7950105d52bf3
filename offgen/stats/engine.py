"""Counters of one engine run. Written by the engine's loop only; read by the live view and the report."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineStats:
    """Totals since the engine started, and gauges as of the last step."""

    steps: int = 0
    sampling_steps: int = 0  # steps that sampled at least one token
    sampled_tokens: int = 0
    prefill_tokens: int = 0  # prompt tokens computed (chunks, recompute included)
    cached_tokens: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    max_running: int = 0
    kv_blocks: int = 0
    kv_blocks_peak: int = 0
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    spans_s: dict[str, float] = field(default_factory=dict)  # seconds by part of a step: scheduler, inputs, forward, sampling, …

    @property
    def bubble_ratio(self) -> float:
        """1 - sampled tokens / (steps that sample x the most rows that ran at once)."""
        places = self.sampling_steps * self.max_running
        return 1.0 - self.sampled_tokens / places if places else 0.0

    def add_span(self, name: str, seconds: float) -> None:
        self.spans_s[name] = self.spans_s.get(name, 0.0) + seconds
