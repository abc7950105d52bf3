"""A plan as a few lines of plain text. Knows the plan's dictionary; opens nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offgen.report.terminal import aligned, duration

BAR_WIDTH = 32


def outlook_text(plan: Mapping[str, Any]) -> str:
    """What `offgen plan` prints."""
    tokens, memory, times = plan["prompt_tokens"], plan["memory"], plan["forecast"]
    failed = sum(plan["errors"].values())
    lines = [
        f"model    {plan['model']}, context {plan['max_model_len']:,}, prompts {plan['prompts']}",
        f"rows     {plan['rows']:,}" + (f", {failed:,} of them will fail" if failed else ", all of them fit"),
        *_errors(plan),
        f"prompts  {tokens['total']:,} tokens; "
        + ", ".join(f"{name} {tokens[name]:,.0f}" for name in ("mean", "p50", "p90", "p99", "max") if tokens[name]),
        *_histogram(plan["prompt_tokens_histogram"]),
        f"shared   {plan['shared_prefix_share']:.1%} of the prompt tokens repeat an earlier prompt's start",
        f"output   {plan['max_output_tokens']:,} tokens at most",
        f"memory   {memory['device']} {memory['dtype']}: weights {_size(memory['weight_bytes'])},"
        f" KV {_size(memory['kv_bytes_per_token'])} a token,"
        f" {_size(memory['kv_bytes_of_the_longest_row'])} the longest row, pool {_size(memory['kv_pool_bytes'])}"
        f" ({memory['kv_blocks']:,} blocks); {_size(memory['available_bytes'])} free",
    ]
    if not memory["fits"]:
        lines.append("         the weights and the longest row do not fit into that memory")
    lines.append(
        f"time     about {duration(times['expected_s'])}, between {duration(times['low_s'])} and"
        f" {duration(times['high_s'])} ({times['assumes']})"
    )
    return "\n".join(lines)


def _errors(plan: Mapping[str, Any]) -> Iterator[str]:
    for kind, count in sorted(plan["errors"].items(), key=lambda item: -item[1]):
        yield f"         {kind}: {count:,}"
    for example in plan["error_examples"]:
        yield f"           {example['where']}: {example['error']}"


def _histogram(bins: list[dict[str, int]]) -> list[str]:
    most = max((one["rows"] for one in bins), default=0)
    rows = [
        ["         ", f"{one['from']:,}-{one['to']:,}", f"{one['rows']:,}", "#" * -(-BAR_WIDTH * one["rows"] // most)]
        for one in bins
    ]
    if not rows:
        return []
    width = max(len(row[3]) for row in rows)
    return aligned([[*row[:3], row[3].ljust(width)] for row in rows])


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit in {"B", "KiB"} else f"{count:,.1f} {unit}"
        count /= 1024
    return ""
