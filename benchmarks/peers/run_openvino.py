"""OpenVINO GenAI's continuous batching. The model is exported once, into the folder of the peers' environments."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.harness import Outputs, measure
from benchmarks.workloads import Row


def exported(model: str, weight_format: str) -> Path:
    home = Path(os.environ.get("OFFGEN_PEERS", Path.home() / ".cache" / "offgen-peers"))
    folder = home / "models" / f"{Path(model).resolve().name}-{weight_format}"
    if not (folder / "openvino_model.xml").exists():
        command = [
            str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino", "--model", model,
            "--task", "text-generation-with-past", "--weight-format", weight_format, str(folder),
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=sys.stderr)
    return folder


def load(options: argparse.Namespace, rows: list[Row]) -> Callable[[], Outputs]:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    weights = "int8" if options.quantization == "int8" else "fp32"
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_seqs = 256
    scheduler.max_num_batched_tokens = 1024
    scheduler.enable_prefix_caching = True
    properties: dict[str, object] = {}
    if weights == "fp32":
        properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    pipeline = genai.ContinuousBatchingPipeline(str(exported(options.model, weights)), scheduler, "CPU", properties)

    def config(row: Row) -> object:
        made = genai.GenerationConfig()
        made.max_new_tokens = row["max_tokens"]
        made.ignore_eos = True
        made.do_sample = False
        return made

    prompts = [ov.Tensor(np.asarray([row["prompt_token_ids"]], dtype=np.int64)) for row in rows]
    configs = [config(row) for row in rows]
    return lambda: [list(done.m_generation_ids[0]) for done in pipeline.generate(prompts, configs)]


if __name__ == "__main__":
    measure("openvino-genai", "openvino-genai", load)
