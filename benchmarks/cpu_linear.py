"""Linear layers on a CPU at decode and prefill sizes: this backend's tile beside what torch offers, in one process.

    python benchmarks/cpu_linear.py [--rows 8,16,32,64,128,512] [--repeats 20]

Prints GFLOP/s (Gop/s for int8): the fastest of several alternating repeats over eight weights of each shape, which
together are larger than the caches. `mkl` and `onednn` are torch's packed weights, packed for the row count at hand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from offgen.backends import open_backend

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (4096, 4096)]  # out, in
COPIES = 8


def contestants(weights: list[torch.Tensor], x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    rows = x.shape[0]
    ours = [open_backend("cpu", dtype="float32").linear(weight) for weight in weights]
    int8 = [open_backend("cpu", dtype="float32", quantization="int8").linear(weight) for weight in weights]
    chosen: dict[str, Callable[[], Any]] = {
        "plain": lambda: [F.linear(x, weight) for weight in weights],
        "offgen": lambda: [linear(x) for linear in ours],
        "offgen int8": lambda: [linear(x) for linear in int8],
    }
    if torch.backends.mkldnn.is_available():
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
        chosen["onednn"] = lambda: [
            torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "") for weight in packed
        ]
    if torch.backends.mkl.is_available():
        packs = [torch.ops.mkl._mkl_reorder_linear_weight(weight, rows) for weight in weights]
        chosen["mkl"] = lambda: [
            torch.ops.mkl._mkl_linear(x, pack, weight, None, rows) for pack, weight in zip(packs, weights, strict=True)
        ]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="8,16,32,64,128,512")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    for out_features, in_features in SHAPES:
        weights = [torch.randn(out_features, in_features) for _ in range(COPIES)]
        for rows in map(int, options.rows.split(",")):
            calls = contestants(weights, torch.randn(rows, in_features))
            best = dict.fromkeys(calls, float("inf"))
            for _ in range(options.repeats):
                for name, call in calls.items():
                    begin = time.perf_counter()
                    call()
                    best[name] = min(best[name], time.perf_counter() - begin)
            work = 2 * rows * out_features * in_features * COPIES / 1e9
            rates = "  ".join(f"{name} {work / seconds:.0f}" for name, seconds in best.items())
            print(f"{rows:4d} x {in_features} -> {out_features}:  {rates}", flush=True)


if __name__ == "__main__":
    main()
