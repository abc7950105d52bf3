"""transformers' own continuous batching (`generate_batch`)."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.peers.harness import Outputs, measure
from benchmarks.workloads import Row


def load(options: argparse.Namespace, rows: list[Row]) -> Callable[[], Outputs]:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype), attn_implementation="sdpa_paged"
    ).eval()
    longest = max(row["max_tokens"] for row in rows)
    config = GenerationConfig(do_sample=False, max_new_tokens=longest, eos_token_id=-1, pad_token_id=0)

    def generate() -> Outputs:
        # the length is the same for all rows there: cut to what each asked for
        done = model.generate_batch([row["prompt_token_ids"] for row in rows], generation_config=config)
        made = list(done.values())
        return [list(out.generated_tokens)[: row["max_tokens"]] for out, row in zip(made, rows, strict=True)]

    return generate


if __name__ == "__main__":
    measure("transformers-cb", "transformers", load)
