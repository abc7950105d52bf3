"""offgen and a peer in turn on the same machine: `python -m benchmarks.compare chat_mix openvino --model FOLDER`.

Each run is a process of its own, A B A B …; prints medians, their ratio, peak memory and the share of the machine's
float32 GEMM limit (whatever the precision of the run), and appends every run to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.peers.install import python_of
from benchmarks.work import linear_flop

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
Run = dict[str, Any]


def run(engine: str, workload: str, model: str, extra: list[str]) -> Run:
    """One run in the engine's own environment."""
    module = "benchmarks.run_offgen" if engine == "offgen" else f"benchmarks.peers.run_{engine}"
    python = sys.executable if engine == "offgen" else str(python_of(engine))
    path = f"{ROOT}:{ROOT / 'kernels'}" if engine == "offgen" else str(ROOT)
    done = subprocess.run(
        [python, "-m", module, workload, "--model", model, *extra],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    result: Run = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def gemm_limit() -> float:
    """float32 GFLOP/s of a large matrix product on this machine: what no engine can pass at that precision."""
    code = (
        "import time,torch; a=torch.randn(2048,2048); b=torch.randn(2048,2048); best=9.\n"
        "for _ in range(12):\n t=time.perf_counter(); a@b; best=min(best,time.perf_counter()-t)\n"
        "print(2*2048**3/best/1e9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("peer", nargs="?", default=None)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--kv-cache-dtype", default="auto")
    options = parser.parse_args()
    extra = ["--quantization", options.quantization]
    ours = [*extra, "--kv-cache-dtype", options.kv_cache_dtype]
    limit = gemm_limit()
    gflop = linear_flop(workloads.load(options.workload), Path(options.model)) / 1e9
    runs: dict[str, list[Run]] = {}
    for _ in range(options.repeats):
        for engine, flags in (("offgen", ours), (options.peer, extra)):
            if engine:
                done = run(engine, options.workload, options.model, flags)
                runs.setdefault(engine, []).append(done)
                _keep(done, limit, gflop / done["run_s"] / limit)
    _show(options.workload, runs, limit, gflop)


def _keep(result: Run, limit: float, share: float) -> None:
    RESULTS.mkdir(exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    line = {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "gemm_gflops": round(limit),
        "gemm_share": round(share, 3),
        **{key: value for key, value in result.items() if key != "rows_sha"},
    }
    with (RESULTS / "cpu.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor()


def _show(workload: str, runs: dict[str, list[Run]], limit: float, gflop: float) -> None:
    medians: dict[str, float] = {}
    for engine, results in runs.items():
        rates = [r["output_tokens_per_s"] for r in results]
        medians[engine] = statistics.median(rates)
        share = gflop / statistics.median(r["run_s"] for r in results) / limit
        print(
            f"{workload:14} {engine:12} {medians[engine]:8.1f} tokens/s  ({min(rates):.0f}-{max(rates):.0f})  "
            f"{share:4.0%} of the GEMM limit  load {results[-1]['load_s']:6.1f} s  "
            f"peak {max(r['peak_rss_mb'] for r in results):5d} MB"
        )
    if len(medians) == 2:
        ours, theirs = medians.values()
        same = sum(a == b for a, b in zip(*(r[-1]["rows_sha"] for r in runs.values()), strict=True))
        num_rows = len(runs["offgen"][-1]["rows_sha"])
        print(f"{workload:14} ratio {ours / theirs:.2f}; same tokens in {same} of {num_rows} rows")
    print(f"{workload:14} {gflop:.0f} GFLOP of linears; a large float32 product here: {limit:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
