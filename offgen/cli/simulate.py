"""`offgen simulate`: the scheduler of a job on a cost model, without weights, one batching mode beside the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from offgen.scheduling.simulate import Simulation

MODES = ("static", "dynamic", "continuous")


def simulate(
    workload: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD...",
            help="JSON-lines files (prompt_token_ids or prompt_tokens, and max_tokens, completion_tokens or both; "
            "arrival_s if rows come over time), or distributions of output lengths: "
            "`lognormal:n=2000,median=64,sigma=1,max=2048,prompt=100`, `uniform:n=500,min=8,max=400`, "
            "`fixed:n=64,length=128`, `list:8/16/400`; each also takes prompt, shared, groups, rate, max_tokens.",
        ),
    ],
    mode: Annotated[
        str, typer.Option("--mode", metavar="MODES", help="static, dynamic, continuous, several with commas, or all.")
    ] = "all",
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", min=1, help="Rows that run at once.")] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option("--max-num-batched-tokens", min=1, help="Token budget of a step.")
    ] = 2048,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", min=1, help="Context. Default: what the longest row needs.")
    ] = None,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            "--num-blocks", min=1, help="Blocks of the KV pool. Default: enough for all seats at full length."
        ),
    ] = None,
    block_size: Annotated[int, typer.Option("--block-size", min=1, help="Tokens a block holds.")] = 16,
    prefix_caching: Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching")] = True,
    chunked_prefill: Annotated[bool, typer.Option("--chunked-prefill/--no-chunked-prefill")] = True,
    order_policy: Annotated[str, typer.Option("--order-policy", help="auto, input, longest-first or prefix.")] = "auto",
    dynamic_wait: Annotated[
        float, typer.Option("--dynamic-wait", min=0, help="Seconds after which `dynamic` closes a batch.")
    ] = 0.05,
    seed: Annotated[int, typer.Option("--seed", help="Of the distributions.")] = 0,
    cost_model: Annotated[
        Path | None, typer.Option("--cost-model", metavar="FILE", help="What a step costs, as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Play a workload through the same scheduler on a cost model, without weights, one batching mode beside the other.

    Shows makespan and speedup, the limit that no schedule can beat, bubble ratio, occupancy, preemptions, latencies.
    """
    from offgen.errors import UsageError
    from offgen.scheduling.config import SchedulerConfig
    from offgen.scheduling.cost_model import CostModel
    from offgen.scheduling.simulate import limit_s
    from offgen.scheduling.simulate import simulate as play
    from offgen.scheduling.workload import read_workload

    modes = _modes(mode)
    cost = CostModel()
    if cost_model is not None:
        try:
            cost = CostModel.from_json(cost_model.read_text(encoding="utf-8"), where=str(cost_model))
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"{cost_model}: cannot be read: {problem}") from problem
    rows = [row for source in workload for row in read_workload(source, seed=seed)]
    length = max_model_len or max((len(row.prompt_ids) + row.max_tokens for row in rows), default=1)
    try:
        configs = [
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=length,
                block_size=block_size,
                num_blocks=num_blocks or min(max_num_seqs, max(len(rows), 1)) * -(-length // block_size),
                prefix_caching=prefix_caching,
                chunked_prefill=chunked_prefill,
                batching=batching,
                order_policy=order_policy,
                dynamic_wait_s=dynamic_wait,
            )
            for batching in modes
        ]
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    limit = limit_s(rows, configs[0], cost)
    results = [play(rows, config, cost) for config in configs]
    if as_json:
        typer.echo(
            json.dumps({"limit_s": limit, "modes": {r.batching: _values(r, results[0], limit) for r in results}})
        )
    else:
        _print_table(_table(results, limit))


def _modes(given: str) -> list[str]:
    from offgen.errors import UsageError

    modes = list(MODES) if given == "all" else [name.strip() for name in given.split(",")]
    for name in modes:
        if name not in MODES:
            raise UsageError(f"--mode: `{name}` is none of {', '.join(MODES)}, all")
    return [name for name in MODES if name in modes]


def _values(result: Simulation, first: Simulation, limit: float) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **asdict(result),
        "bubble_ratio": result.bubble_ratio,
        "completion_tokens_per_s": result.completion_tokens_per_s,
        "speedup": first.makespan_s / result.makespan_s if result.makespan_s else 1.0,
        "share_of_limit": limit / result.makespan_s if result.makespan_s else 1.0,
    }


def _table(results: list[Simulation], limit: float) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for result in results:
        table.add_column(result.batching, justify="right")
    values = [_values(result, results[0], limit) for result in results]
    lines: list[tuple[str, list[str]]] = [
        ("makespan", [f"{v['makespan_s']:,.1f} s" for v in values]),
        ("speedup", [f"{v['speedup']:.2f}x" for v in values]),
        (f"share of the limit ({limit:,.1f} s)", [f"{v['share_of_limit']:.1%}" for v in values]),
        ("output tokens/s", [f"{v['completion_tokens_per_s']:,.0f}" for v in values]),
        ("rows", [f"{v['rows']:,}" for v in values]),
        ("rows that never fit", [f"{v['refused']:,}" for v in values]),
        ("steps", [f"{v['steps']:,}" for v in values]),
        ("bubble ratio", [f"{v['bubble_ratio']:.1%}" for v in values]),
        ("  before the last 2% of work", [f"{v['bubble_ratio_before_tail']:.1%}" for v in values]),
        ("KV pool in use, mean", [f"{v['kv_occupancy']:.1%}" for v in values]),
        ("KV blocks, peak of pool", [f"{v['kv_blocks_peak']:,} of {v['kv_blocks']:,}" for v in values]),
        ("preemptions", [f"{v['num_preemptions']:,}" for v in values]),
        ("recomputed tokens", [f"{v['recomputed_tokens']:,}" for v in values]),
        ("prefill tokens computed", [f"{v['prefill_tokens']:,}" for v in values]),
        ("prompt tokens from the cache", [f"{v['cached_tokens']:,}" for v in values]),
    ]
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "e2e")):
        shown = ["  ".join(_duration(v[name].get(p)) for p in ("p50", "p90", "p99")) for v in values]
        lines.append((f"{label} p50 p90 p99", shown))
    for label, cells in lines:
        table.add_row(label, *cells)
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _print_table(table: Table) -> None:
    """The table is the data here: stdout, as wide as it needs."""
    import sys

    from rich.console import Console

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)
    console.print(table)
