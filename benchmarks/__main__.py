"""`python -m benchmarks`: on a GPU the ten-minute script, else the three workloads on this machine's processors."""

from __future__ import annotations

import subprocess
import sys

CPU_WORKLOADS = ("chat_mix", "uniform", "shared_prefix")


def main() -> int:
    import torch

    if torch.cuda.is_available():
        return subprocess.run([sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]], check=False).returncode
    from offgen.checkpoints import resolve

    folder = str(resolve("smollm2-135m-instruct").folder)
    for workload in CPU_WORKLOADS:
        for quantization in ("none", "int8"):
            command = [sys.executable, "-m", "benchmarks.compare", workload, "--model", folder]
            done = subprocess.run([*command, "--quantization", quantization, *sys.argv[1:]], check=False)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
