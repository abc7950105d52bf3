"""Measures the real engine on a workload: batching modes side by side, and where the time of a step goes.

Prompts are token ids and every row makes a known number of tokens, so that all modes do the same work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from offgen.backends import Backend
from offgen.backends.timed import GEMM, TimedBackend, gemm_limit_flop_s
from offgen.checkpoints import resolve
from offgen.config import EngineConfig, ModelConfig, engine_options
from offgen.engine import EngineOptions, open_engine
from offgen.models import load_config
from offgen.records import Completion, Prompt, Row
from offgen.report.provenance import commit, peak_rss_bytes, versions
from offgen.report.terminal import aligned
from offgen.sampling.params import SamplingParams
from offgen.scheduling.cost_model import StepSample, fit
from offgen.scheduling.workload import SimulatedRow, read_workload
from offgen.stats.engine import EngineStats, StepTrace
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
    profile: bool = False


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
                figures = _measure(
                    checkpoint.folder, replace(options, batching=mode), rows, vocab_size, profile=config.profile
                )
                slowest = first_s.setdefault(source, figures["run_s"])
                figures["speedup"] = slowest / figures["run_s"]
                yield {"workload": source, "batching": mode, "repeat": repeat, **figures, **origin}


def _measure(
    folder: Any, options: EngineOptions, rows: Sequence[SimulatedRow], vocab_size: int, *, profile: bool
) -> dict[str, Any]:
    """One run on an engine of its own: a pool that another run has filled is no fair start."""
    started_s = time.monotonic()
    timed: list[TimedBackend] = []
    if profile:  # a recorded step has no parts
        options = replace(options, enforce_eager=True)
    engine = open_engine(folder, options, wrap=_stopwatch(timed) if profile else None)
    for _ in engine.generate(_prompts([WARM_UP], vocab_size)):
        pass  # compiles what is compiled on first use
    before = replace(engine.stats, spans_s=dict(engine.stats.spans_s))
    load_s = time.monotonic() - started_s
    engine.stats.trace = []
    for backend in timed:
        backend.watch.reset()
    started_s = time.monotonic()
    completions = list(engine.generate(_prompts(rows, vocab_size)))
    run_s = time.monotonic() - started_s
    about = _about(engine.describe())
    figures = _figures(completions, _since(engine.stats, before), run_s, load_s)
    for backend in timed:
        figures |= _inside(backend, figures["spans_s"])
    cost = fit(
        _samples(engine.stats.trace, about["kv_bytes_per_token"]), kv_bytes_per_token=about["kv_bytes_per_token"]
    )
    return {**figures, **about, "cost_model": json.loads(cost.to_json())}


def _stopwatch(timed: list[TimedBackend]) -> Callable[[Backend], Backend]:
    def wrap(backend: Backend) -> Backend:
        timed.append(TimedBackend(backend))
        return cast(Backend, timed[-1])

    return wrap


def _inside(backend: TimedBackend, spans_s: dict[str, float]) -> dict[str, Any]:
    """The model's part of the spans by op, and what the linears reach of the machine's limit."""
    seconds = dict(backend.watch.seconds)
    in_model = spans_s.pop("forward", 0.0) + spans_s.pop("logits", 0.0)
    spans_s |= {**seconds, "model, other": max(0.0, in_model - sum(seconds.values()))}
    gemm_s = seconds.get(GEMM, 0.0)
    return {
        "gemm_flop": backend.watch.gemm_flop,
        "gemm_flop_s": backend.watch.gemm_flop / gemm_s if gemm_s else None,
        "gemm_limit_flop_s": gemm_limit_flop_s() if backend.device.type == "cpu" else None,
    }


def _samples(trace: Sequence[StepTrace], kv_bytes_per_token: int) -> list[StepSample]:
    return [
        StepSample(step.num_prefill_tokens, step.num_decode_rows, step.num_kv_tokens * kv_bytes_per_token, step.seconds)
        for step in trace
    ]


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
    lines = [f"{record['workload']}, {record['batching']}: {record['steps']:,} steps", *aligned(rows)]
    if record.get("gemm_flop_s"):
        limit = record["gemm_limit_flop_s"]
        share = f", {record['gemm_flop_s'] / limit:.0%} of a large product's {limit / 1e9:.0f}" if limit else ""
        whole = f"; the whole run at {record['gemm_flop'] / record['run_s'] / limit:.0%}" if limit else ""
        lines.append(f"linears: {record['gemm_flop_s'] / 1e9:.0f} GFLOP/s{share}{whole}")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:,.1f} ms"
