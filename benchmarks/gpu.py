"""The ten-minute benchmark of a GPU: ceilings, correctness, kernels, whole steps and jobs, and a table of them.

    python -m benchmarks.gpu                    all stages; results appended to benchmarks/results/gpu.jsonl
    python -m benchmarks.gpu --stage kernels    one of them, in this process
    python -m benchmarks.gpu --smoke            all of it at toy sizes under Triton's interpreter; no number counts

Each stage runs in a process of its own with a time box, and survives another's failure. An op that is wrong gets no
timing. Every line carries device, versions and commit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gpu.jsonl"
STAGES = {"compile": 90, "kernels": 240, "engine": 300, "transformers": 90}  # name -> seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=STAGES)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/gpu.jsonl")
    options = parser.parse_args()
    options.output = options.output or (Path(tempfile.mkdtemp()) / "smoke.jsonl" if options.smoke else RESULTS)
    if options.smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
    if options.stage:
        run_stage(options.stage, smoke=options.smoke, output=options.output)
        return 0
    started, failed = time.time(), []
    for stage, limit_s in STAGES.items():
        if not _in_own_process(stage, limit_s, options):
            failed.append(stage)
    print_table(_lines_since(options.output, started))
    for stage in failed:
        print(f"stage {stage} failed or ran out of time; its finished lines are in the table", file=sys.stderr)
    return 1 if failed else 0


def _in_own_process(stage: str, limit_s: int, options: argparse.Namespace) -> bool:
    command = [sys.executable, "-m", "benchmarks.gpu", "--stage", stage, "--output", str(options.output)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    print(f"== {stage} (at most {limit_s} s)", flush=True)
    try:
        run = subprocess.run(
            [*command, *(["--smoke"] if options.smoke else [])],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def run_stage(stage: str, *, smoke: bool, output: Path) -> None:
    sys.path[:0] = [str(ROOT / "kernels" / "bench"), str(ROOT / "kernels")]
    about = _about(smoke)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as file:
        for line in {"compile": _compile, "kernels": _kernels, "engine": _engine, "transformers": _transformers}[stage](
            smoke
        ):
            file.write(json.dumps({"stage": stage, **line, **about, "at": time.time()}) + "\n")
            file.flush()
            print(_row(line), flush=True)


def _compile(smoke: bool) -> Iterator[dict[str, Any]]:
    """Fill Triton's cache from several processes; the other stages find it warm."""
    started = time.perf_counter()
    if smoke:
        yield {"op": "compile", "shape": "nothing under the interpreter", "us": 0.0}
        return
    from variants import variants

    target = _target_name()
    names = list(variants())
    workers = min(8, os.cpu_count() or 1)
    command = [sys.executable, str(ROOT / "kernels" / "bench" / "variants.py"), "--target", target]
    running = [
        subprocess.Popen([*command, *names[i::workers]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for i in range(workers)
    ]
    failed = sum(process.wait() != 0 for process in running)
    yield {
        "op": "compile", "shape": f"{len(names)} variants for {target}, {failed} of {workers} workers failed",
        "us": (time.perf_counter() - started) * 1e6,
    }  # fmt: skip


def _target_name() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return {8: "sm_80", 9: "sm_90"}.get(major, f"sm_{major}{minor}")


def _kernels(smoke: bool) -> Iterator[dict[str, Any]]:
    import torch
    from case import Scale
    from op_cases import cases
    from timing import measure_ceilings, time_eager_us, time_us

    device = torch.device("cpu" if smoke else "cuda")
    torch.manual_seed(0)
    ceilings = measure_ceilings(device)
    yield {"op": "ceilings", "shape": "", "us": ceilings.empty_us, **asdict(ceilings)}
    for case in cases(Scale(device, torch.float32 if smoke else torch.bfloat16, smoke)):
        line: dict[str, Any] = {"op": case.op, "shape": case.shape}
        try:
            line["error"] = case.error()
            if not line["error"] <= case.tolerance:
                yield line | {"wrong": True}
                continue
            timing = time_us(case.run, device)
            line |= {"us": timing.us, "spread": timing.spread}
            line |= _achieved(case, timing.us, ceilings)
        except Exception as error:  # one op must not take the others down
            yield line | {"failed": repr(error)[:300]}
            continue
        for name, run in case.peers.items():
            try:
                line.setdefault("peers", {})[name] = time_eager_us(run, device).us
            except Exception as error:
                line.setdefault("peer_errors", {})[name] = repr(error)[:200]
        yield line


def _achieved(case: Any, us: float, ceilings: Any) -> dict[str, Any]:
    if case.ceiling == "gemm":
        rate = case.flops / us / 1e6
        return {"tflop_s": rate, "of_ceiling": rate / ceilings.gemm_tflop_s}
    if case.ceiling == "empty":
        return {"of_ceiling": ceilings.empty_us / us}
    rate = case.num_bytes / us / 1e3
    best = ceilings.read_gb_s if case.ceiling == "read" else ceilings.copy_gb_s
    return {"gb_s": rate, "of_ceiling": rate / best}


def _engine(smoke: bool) -> Iterator[dict[str, Any]]:
    from benchmarks.gpu_engine import measure

    yield from measure(smoke)


def _transformers(smoke: bool) -> Iterator[dict[str, Any]]:
    from benchmarks.gpu_engine import measure_transformers

    yield from measure_transformers(smoke)


def _about(smoke: bool) -> dict[str, Any]:
    import torch
    import triton

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "device": "interpreter" if smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "commit": commit.stdout.strip() or None,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _lines_since(path: Path, started: float) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["at"] >= started]


def print_table(lines: list[dict[str, Any]]) -> None:
    print(f"\n{'op':28} {'shape':38} {'us':>10}  {'rate':>14} {'of ceiling':>10}  best peer")
    for line in lines:
        print(_row(line))


def _row(line: dict[str, Any]) -> str:
    if line.get("wrong"):
        return f"{line['op']:28} {line['shape']:38} WRONG: relative error {line['error']:.2e}"
    if "failed" in line:
        return f"{line['op']:28} {line['shape']:38} FAILED: {line['failed']}"
    rate = (
        f"{line['gb_s']:.0f} GB/s" if "gb_s" in line else f"{line['tflop_s']:.0f} TFLOP/s" if "tflop_s" in line else ""
    )
    share = f"{line['of_ceiling']:.0%}" if "of_ceiling" in line else ""
    best = min(line.get("peers", {}).items(), key=lambda peer: peer[1], default=None)
    beside = f"{best[0]} {best[1]:.0f} us: {best[1] / line['us']:.2f}x" if best else str(line.get("note", ""))
    return f"{line['op']:28} {line['shape']:38} {line.get('us', 0):10.1f}  {rate:>14} {share:>10}  {beside}"


if __name__ == "__main__":
    sys.exit(main())
