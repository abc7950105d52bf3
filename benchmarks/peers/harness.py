"""What every runner shares: arguments in, one JSON line out. Standard library only."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import resource
import time
from collections.abc import Callable, Sequence

from benchmarks import workloads

Outputs = Sequence[Sequence[int]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--model", required=True, help="a folder in Hugging Face layout")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def measure(
    engine: str, package: str, load: Callable[[argparse.Namespace, list[workloads.Row]], Callable[[], Outputs]]
) -> None:
    """Load, run once, and print what happened.

    load(arguments, rows) returns a function that generates; only that call is timed as `run_s`.
    """
    options = arguments()
    rows = workloads.load(options.workload, options.seed)
    started = time.perf_counter()
    generate = load(options, rows)
    loaded = time.perf_counter()
    outputs = generate()
    ended = time.perf_counter()
    num_tokens = sum(len(ids) for ids in outputs)
    expected = sum(row["max_tokens"] for row in rows)
    print(
        json.dumps(
            {
                "engine": engine,
                "version": importlib.metadata.version(package),
                "workload": options.workload.rsplit("/", 1)[-1].removesuffix(".jsonl"),
                "dtype": options.dtype if options.quantization == "none" else options.quantization,
                "kv_cache_dtype": options.kv_cache_dtype,
                "output_tokens": num_tokens,
                "is_complete": num_tokens == expected,
                "load_s": round(loaded - started, 3),
                "run_s": round(ended - loaded, 3),
                "output_tokens_per_s": round(num_tokens / (ended - loaded), 1),
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "rows_sha": [hashlib.sha256(str(list(ids)).encode()).hexdigest()[:8] for ids in outputs],
            }
        ),
        flush=True,
    )
