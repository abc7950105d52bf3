"""vLLM's CPU build, offline `LLM.generate` over token ids."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from benchmarks.peers.harness import Outputs, measure
from benchmarks.workloads import Row


def load(options: argparse.Namespace, rows: list[Row]) -> Callable[[], Outputs]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(options.model, dtype=options.dtype, max_model_len=2048, enable_prefix_caching=True, seed=0)
    prompts = [TokensPrompt(prompt_token_ids=row["prompt_token_ids"]) for row in rows]
    params = [SamplingParams(temperature=0.0, max_tokens=row["max_tokens"], ignore_eos=True) for row in rows]
    return lambda: [list(out.outputs[0].token_ids) for out in llm.generate(prompts, params, use_tqdm=False)]


if __name__ == "__main__":
    measure("vllm", "vllm-cpu", load)
