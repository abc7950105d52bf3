"""Measures the real engine on a workload: batching modes side by side, and where the time of a step goes.

Prompts are token ids and every row makes a known number of tokens, so that all modes do the same work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offgen.checkpoints import resolve
from offgen.config import EngineConfig, ModelConfig, engine_options
from offgen.engine import EngineOptions, open_engine
from offgen.models import load_config
from offgen.records import Completion, Prompt, Row
from offgen.report.provenance import commit, peak_rss_bytes, versions
from offgen.report.terminal import aligned
from offgen.sampling.params import SamplingParams
from offgen.scheduling.workload import SimulatedRow, read_workload
from offgen.stats.engine import EngineStats
from offgen.stats.histogram import LogHistogram

DEFAULT_WORKLOAD = "lognormal:n=96,median=32,sigma=1,max=256,prompt=32"
DEFAULT_MAX_NUM_SEQS = 16  # fewer than the default workload's rows: batching modes differ only where rows wait
LATENCIES = ("queue_s", "ttft_s", "tpot_s", "e2e_s")
WARM_UP = SimulatedRow(range(1, 9), 4, 4)


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """What to measure: each workload under each mode, `repeats` times."""

    model: ModelConfig
    engine: EngineConfig
    workloads: tuple[str, ...]
    modes: tuple[str, ...]
    repeats: int = 1
    seed: int = 0


def bench(config: BenchConfig) -> Iterator[dict[str, Any]]:
    """One record for each run, as it ends. Raises UsageError for a model or workload that cannot be opened."""
    checkpoint = resolve(config.model.model, revision=config.model.revision, tokenizer=config.model.tokenizer)
    vocab_size = load_config(checkpoint.folder, model_impl=config.engine.model_impl).vocab_size
    loads = {source: read_workload(source, seed=config.seed) for source in config.workloads}
    options = engine_options(config.engine)
    if options.max_num_seqs is None and len(config.modes) > 1:
        options = replace(options, max_num_seqs=DEFAULT_MAX_NUM_SEQS)
    origin = {"model": checkpoint.name, "versions": versions(), "commit": commit(), "seed": config.seed}
    first_s: dict[str, float] = {}
    for mode in config.modes:
        for source, rows in loads.items():
            for repeat in range(config.repeats):
                figures = _measure(checkpoint.folder, replace(options, batching=mode), rows, vocab_size)
                slowest = first_s.setdefault(source, figures["run_s"])
                figures["speedup"] = slowest / figures["run_s"]
                yield {"workload": source, "batching": mode, "repeat": repeat, **figures, **origin}


def _measure(folder: Any, options: EngineOptions, rows: Sequence[SimulatedRow], vocab_size: int) -> dict[str, Any]:
    """One run on an engine of its own: a pool that another run has filled is no fair start."""
    started_s = time.monotonic()
    engine = open_engine(folder, options)
    for _ in engine.generate(_prompts([WARM_UP], vocab_size)):
        pass  # compiles what is compiled on first use
    before = replace(engine.stats, spans_s=dict(engine.stats.spans_s))
    load_s = time.monotonic() - started_s
    started_s = time.monotonic()
    completions = list(engine.generate(_prompts(rows, vocab_size)))
    run_s = time.monotonic() - started_s
    return {**_figures(completions, _since(engine.stats, before), run_s, load_s), **_about(engine.describe())}


def _prompts(rows: Sequence[SimulatedRow], vocab_size: int) -> Iterator[Prompt]:
    for place, row in enumerate(rows):
        ids = [token_id % vocab_size for token_id in row.prompt_ids]
        params = SamplingParams(max_tokens=row.num_output_tokens, ignore_eos=True)
        yield Prompt(Row(place, None, 0, {}, f"row {place}"), ids, params)


def _since(now: EngineStats, before: EngineStats) -> EngineStats:
    """What the run itself counted, the warm-up left out."""
    counted = {
        name: getattr(now, name) - getattr(before, name)
        for name in ("steps", "sampling_steps", "sampled_tokens", "prefill_tokens", "cached_tokens", "num_preemptions",
                     "recomputed_tokens")
    }  # fmt: skip
    spans = {name: seconds - before.spans_s.get(name, 0.0) for name, seconds in now.spans_s.items()}
    return replace(now, **counted, spans_s=spans)


def _figures(completions: Sequence[Completion], stats: EngineStats, run_s: float, load_s: float) -> dict[str, Any]:
    histograms = {name: LogHistogram() for name in LATENCIES}
    for completion in completions:
        for name, histogram in histograms.items():
            value = getattr(completion.stats, name)
            if value is not None:
                histogram.add(max(value, 0.0))
    num_tokens = sum(completion.num_completion_tokens for completion in completions)
    return {
        "rows": len(completions),
        "errors": sum(completion.error is not None for completion in completions),
        "prompt_tokens": sum(completion.num_prompt_tokens for completion in completions),
        "completion_tokens": num_tokens,
        "cached_tokens": stats.cached_tokens,
        "load_s": load_s,
        "run_s": run_s,
        "completion_tokens_per_s": num_tokens / run_s if run_s else None,
        "steps": stats.steps,
        "bubble_ratio": max(0.0, stats.bubble_ratio),
        "num_preemptions": stats.num_preemptions,
        "kv_blocks": stats.kv_blocks,
        "kv_blocks_peak": stats.kv_blocks_peak,
        "peak_rss_bytes": peak_rss_bytes(),
        **{name: histogram.summary() for name, histogram in histograms.items()},
        "spans_s": stats.spans_s,
    }


def _about(described: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in described.items() if name != "why"}


def comparison(records: Sequence[dict[str, Any]]) -> str:
    """The runs side by side, for people."""
    rows = [
        ["workload", "batching", "tokens/s", "run", "speedup", "bubble", "steps", "TTFT p50", "TPOT p50", "e2e p99"]
    ]
    for one in records:
        rows.append(
            [
                one["workload"],
                one["batching"],
                f"{one['completion_tokens_per_s'] or 0:,.1f}",
                f"{one['run_s']:.2f} s",
                f"{one['speedup']:.2f}x",
                f"{one['bubble_ratio']:.1%}",
                f"{one['steps']:,}",
                *(
                    _seconds(one[name][percent])
                    for name, percent in (("ttft_s", "p50"), ("tpot_s", "p50"), ("e2e_s", "p99"))
                ),
            ]
        )
    return "\n".join(aligned(rows))


def profile(record: dict[str, Any]) -> str:
    """Where one run's time went, by part of a step."""
    spans, steps = record["spans_s"], max(record["steps"], 1)
    spans = {**spans, "other": max(record["run_s"] - sum(spans.values()), 0.0)}
    rows = [["part of a step", "time", "per step", "share"]]
    for name, seconds in sorted(spans.items(), key=lambda item: -item[1]):
        share = seconds / record["run_s"] if record["run_s"] else 0.0
        rows.append([name, f"{seconds:.3f} s", f"{1000 * seconds / steps:.3f} ms", f"{share:.1%}"])
    return "\n".join([f"{record['workload']}, {record['batching']}: {record['steps']:,} steps", *aligned(rows)])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:,.1f} ms"
