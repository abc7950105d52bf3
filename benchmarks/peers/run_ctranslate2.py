"""CTranslate2 over sorted static batches of 32."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.harness import Outputs, measure
from benchmarks.workloads import Row

BATCH = 32


def converted(model: str, dtype: str) -> Path:
    home = Path(os.environ.get("OFFGEN_PEERS", Path.home() / ".cache" / "offgen-peers"))
    folder = home / "models" / f"{Path(model).resolve().name}-ct2-{dtype}"
    if not folder.exists():
        command = [
            str(Path(sys.executable).parent / "ct2-transformers-converter"),
            "--model",
            model,
            "--quantization",
            dtype,
        ]
        subprocess.run([*command, "--output_dir", str(folder)], check=True, stdout=sys.stderr)
    return folder


def load(options: argparse.Namespace, rows: list[Row]) -> Callable[[], Outputs]:
    import ctranslate2
    from transformers import AutoTokenizer

    dtype = "int8" if options.quantization == "int8" else options.dtype
    generator = ctranslate2.Generator(str(converted(options.model, dtype)), device="cpu", compute_type=dtype)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    order = sorted(range(len(rows)), key=lambda i: -rows[i]["max_tokens"])

    def generate() -> Outputs:
        made: dict[int, list[int]] = {}
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            longest = max(rows[i]["max_tokens"] for i in batch)
            done = generator.generate_batch(
                [tokenizer.convert_ids_to_tokens(rows[i]["prompt_token_ids"]) for i in batch],
                max_length=longest, min_length=longest, sampling_topk=1, include_prompt_in_result=False,
            )  # fmt: skip
            for i, result in zip(batch, done, strict=True):
                made[i] = list(result.sequences_ids[0])[: rows[i]["max_tokens"]]
        return [made[i] for i in range(len(rows))]

    return generate


if __name__ == "__main__":
    measure("ctranslate2", "ctranslate2", load)
