"""What narrower weights and KV cost in perplexity, through the engine: `python -m benchmarks.perplexity --model DIR`.

The text is English prose that every Python 3.11 carries: the doc strings of a few standard modules, in a fixed order,
cut into windows. Each window is one row with prompt_logprobs; its own first half is context only and is not counted.
`standard_error` is that of the change, from the differences token by token.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

from offgen.engine import EngineOptions, open_engine
from offgen.records import Prompt, Row
from offgen.sampling.params import SamplingParams
from offgen.text import load_tokenizer

MODULES = ["statistics", "decimal", "difflib", "doctest", "argparse", "pickletools", "random", "optparse", "heapq"]
WINDOW = 512
SETTINGS = [("none", "auto"), ("none", "bf16"), ("none", "int8"), ("int8", "bf16"), ("int8", "int8")]


def prose() -> str:
    """Module doc strings, then those of the public classes and functions of each, in alphabetical order."""
    parts = []
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(inspect.getdoc(module) or "")
        for _, member in sorted(vars(module).items()):
            if getattr(member, "__module__", None) == name and callable(member):
                parts.append(inspect.getdoc(member) or "")
    return "\n\n".join(part for part in parts if part)


def windows(token_ids: list[int], count: int) -> Iterator[Prompt]:
    """Windows that overlap by half, so that every counted token has at least half a window before it."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True)
    for index in range(count):
        ids = token_ids[index * WINDOW // 2 : index * WINDOW // 2 + WINDOW]
        if len(ids) < WINDOW:
            return
        yield Prompt(row=Row(index, None, 0, {}, str(index)), token_ids=ids, params=params)


def logprobs(model: Path, prompts: list[Prompt], quantization: str, kv_cache_dtype: str) -> list[float]:
    """Log-probabilities of the counted tokens, window by window."""
    engine = open_engine(
        model,
        EngineOptions(device="cpu", dtype="float32", quantization=quantization, kv_cache_dtype=kv_cache_dtype),
    )
    found: dict[int, list[float]] = {}
    for completion in engine.generate(prompts):
        assert completion.error is None and completion.prompt_logprobs is not None, completion.error
        counted = completion.prompt_logprobs[WINDOW // 2 :]
        found[completion.row.row_id] = [e.logprob for e in counted if e is not None and e.logprob is not None]
    return [value for _, values in sorted(found.items()) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder in Hugging Face layout")
    parser.add_argument("--windows", type=int, default=20)
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model = Path(options.model)
    prompts = list(windows(list(load_tokenizer(model).encode(prose(), add_special_tokens=False)), options.windows))
    base: list[float] = []
    for quantization, kv_cache_dtype in SETTINGS:
        values = logprobs(model, prompts, quantization, kv_cache_dtype)
        base = base or values
        losses = [one - other for one, other in zip(base, values, strict=True)]
        result = {
            "weights": "fp32" if quantization == "none" else quantization,
            "kv": "fp32" if kv_cache_dtype == "auto" else kv_cache_dtype,
            "tokens": len(values),
            "perplexity": round(math.exp(-statistics.fmean(values)), 4),
            "change": f"{math.expm1(statistics.fmean(losses)):+.2%}",
            "standard_error": f"{statistics.stdev(losses) / math.sqrt(len(losses)):.2%}",
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
