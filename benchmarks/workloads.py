"""The workloads every engine is measured on, as generators with seeds. Standard library only: peers import it too.

A workload is a list of rows {id, prompt_token_ids, max_tokens}; generation is greedy and ignores EOS, so that every
engine makes the same number of tokens.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB = range(300, 48_000)  # ordinary ids of SmolLM2's vocabulary: past the special and single-byte tokens

Row = dict[str, Any]


def chat_mix(seed: int = 0) -> list[Row]:
    """128 chat turns: prompts log-normal between 20 and 400 tokens, outputs heavy-tailed between 8 and 400."""
    rng = random.Random(seed)
    return [
        _row(
            rng,
            i,
            _lognormal(rng, median=90, sigma=0.6, low=20, high=400),
            _lognormal(rng, median=40, sigma=1.0, low=8, high=400),
        )
        for i in range(128)
    ]


def uniform(seed: int = 0) -> list[Row]:
    """32 rows, 128 tokens in, 128 out."""
    rng = random.Random(seed)
    return [_row(rng, i, 128, 128) for i in range(32)]


def shared_prefix(seed: int = 0) -> list[Row]:
    """64 rows with the same first 512 tokens and 20 to 60 of their own, 32 out."""
    rng = random.Random(seed)
    shared = [rng.choice(VOCAB) for _ in range(512)]
    rows = [_row(rng, i, rng.randint(20, 60), 32) for i in range(64)]
    return [{**row, "prompt_token_ids": shared + row["prompt_token_ids"]} for row in rows]


def heavy_tail(seed: int = 0, count: int = 2000) -> list[Row]:
    """Short prompts, outputs log-normal with median 64 and sigma 1, clipped at 2,048."""
    rng = random.Random(seed)
    return [_row(rng, i, 16, _lognormal(rng, median=64, sigma=1.0, low=1, high=2048)) for i in range(count)]


WORKLOADS: dict[str, Callable[[int], list[Row]]] = {
    "chat_mix": chat_mix,
    "uniform": uniform,
    "shared_prefix": shared_prefix,
    "heavy_tail": heavy_tail,
}


def load(name: str, seed: int = 0) -> list[Row]:
    """A workload by name, or from a JSONL file of the same fields."""
    if name in WORKLOADS:
        return WORKLOADS[name](seed)
    with Path(name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _row(rng: random.Random, index: int, num_prompt: int, num_output: int) -> Row:
    return {"id": index, "prompt_token_ids": [rng.choice(VOCAB) for _ in range(num_prompt)], "max_tokens": num_output}


def _lognormal(rng: random.Random, *, median: float, sigma: float, low: int, high: int) -> int:
    return min(high, max(low, round(rng.lognormvariate(math.log(median), sigma))))
