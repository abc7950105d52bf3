"""Counters of one engine run. Written by the engine's loop only; read by the live view and the report."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepTrace:
    """What one step computed, and how long it took from plan to sampled ids."""

    num_prefill_tokens: int
    num_decode_rows: int
    num_kv_tokens: int  # tokens whose KV the step's attention reads
    seconds: float


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
    out_of_memory_steps: int = 0  # steps that were given up, their rows computed again
    max_running: int = 0
    kv_blocks: int = 0
    kv_blocks_peak: int = 0
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    # seconds by part of a step: scheduler, inputs, forward, logits, sampling, detokenise
    spans_s: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)  # what a user should know now; each is said once
    trace: list[StepTrace] | None = None  # every step, for who sets a list here: a measurement, never a job

    @property
    def bubble_ratio(self) -> float:
        """1 - sampled tokens / (steps that sample x the most rows that ran at once)."""
        places = self.sampling_steps * self.max_running
        return 1.0 - self.sampled_tokens / places if places else 0.0

    def add_span(self, name: str, seconds: float) -> None:
        self.spans_s[name] = self.spans_s.get(name, 0.0) + seconds
