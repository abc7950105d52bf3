"""offgen itself as one of the runners, through its Python door."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.harness import Outputs, measure
from benchmarks.workloads import Row


def load(options: argparse.Namespace, rows: list[Row]) -> Callable[[], Outputs]:
    from offgen.engine import EngineOptions, open_engine
    from offgen.records import Prompt
    from offgen.records import Row as Record
    from offgen.sampling.params import SamplingParams

    engine = open_engine(
        Path(options.model),
        EngineOptions(
            dtype=options.dtype,
            quantization=options.quantization,
            kv_cache_dtype=options.kv_cache_dtype,
            threads=options.threads or None,
        ),
    )
    prompts = [
        Prompt(
            row=Record(row_id=i, record=None, index=0, values={}, where=str(i)),
            token_ids=row["prompt_token_ids"],
            params=SamplingParams(max_tokens=row["max_tokens"], ignore_eos=True),
        )
        for i, row in enumerate(rows)
    ]

    def generate() -> Outputs:
        done = {c.row.row_id: c.token_ids for c in engine.generate(prompts)}
        return [done[i] for i in range(len(rows))]

    return generate


if __name__ == "__main__":
    measure("offgen", "offgen", load)
