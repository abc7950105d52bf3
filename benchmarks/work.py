"""The arithmetic that a workload cannot do without, in floating-point operations. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from benchmarks.workloads import Row


def linear_flop(rows: Sequence[Row], model: Path) -> int:
    """Of a gated decoder's linear layers: every distinct prompt prefix once, the head for sampled positions alone.

    model   a folder with config.json
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden, num_heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // num_heads
    kv_heads = config.get("num_key_value_heads") or num_heads
    attention = 2 * hidden * head_dim * (num_heads + kv_heads)
    per_token = config["num_hidden_layers"] * (attention + 3 * hidden * config["intermediate_size"])
    num_output = sum(row["max_tokens"] for row in rows)
    num_fed = num_prompt_tokens(rows) + num_output - len(rows)  # the last token of a row is not fed back
    return 2 * (per_token * num_fed + hidden * config["vocab_size"] * num_output)


def num_prompt_tokens(rows: Sequence[Row]) -> int:
    """Prompt tokens of all rows, what two of them begin with counted once."""
    prompts = sorted(row["prompt_token_ids"] for row in rows)
    shared = [
        sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(*pair, strict=False))) for pair in pairwise(prompts)
    ]
    return sum(map(len, prompts)) - sum(shared)
