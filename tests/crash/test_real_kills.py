"""The whole command over a real model, killed at random moments and started again until it is done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.tiny_chat import save_tiny_chat_model

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = 2000
KILLS = int(os.environ.get("OFFGEN_KILLS", "8"))  # the full measure is 100
FLUSH_S = 0.2


def command(folder: Path, output: str) -> list[str]:
    return [
        sys.executable, "-m", "offgen", "run", str(folder / "in.jsonl"), "-o", str(folder / output), "--model",
        str(folder / "model"), "--max-tokens", "24", "--temperature", "1", "--ignore-eos", "--rows-per-shard", "300",
        "--flush-interval", str(FLUSH_S), "--max-num-seqs", "4", "--num-gpu-blocks-override", "256", "--threads", "1",
        "--progress", "none",
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}", "OMP_NUM_THREADS": "1"}


def rows_without_stats(output: Path) -> list[dict[str, Any]]:
    return pq.read_table(output).drop_columns(["stats"]).to_pylist()


def kill_once(line: Sequence[str], journal: Path, rng: random.Random) -> bool:
    """Start the job and kill it at a random moment of its work; True if it was done before."""
    job = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    size = sum(file.stat().st_size for file in journal.rglob("*") if file.is_file())
    while job.poll() is None and size == sum(file.stat().st_size for file in journal.rglob("*") if file.is_file()):
        time.sleep(0.02)  # it works once the journal moves: kills during start-up would test nothing
    time.sleep(rng.uniform(0, 2 * FLUSH_S))
    is_done = job.poll() is not None
    job.send_signal(signal.SIGKILL)
    _, said = job.communicate()
    assert b"Traceback" not in said, said.decode()
    assert not is_done or job.returncode == 0, said.decode()
    return is_done


@pytest.mark.slow
def test_a_job_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    save_tiny_chat_model(tmp_path / "model")
    lines = (json.dumps({"prompt": f"prompt {i} of the dog", "place": i}) + "\n" for i in range(ROWS))
    (tmp_path / "in.jsonl").write_text("".join(lines), encoding="utf-8")
    subprocess.run(command(tmp_path, "whole.parquet"), env=environment(), check=True, timeout=600)

    rng, line = random.Random(5), command(tmp_path, "killed.parquet")
    kills = 0
    for _ in range(KILLS):
        if kill_once(line, tmp_path / "killed.parquet.offgen", rng):
            break
        kills += 1
    subprocess.run(line, env=environment(), check=True, timeout=600)

    assert kills >= min(KILLS, 3)
    made = rows_without_stats(tmp_path / "killed.parquet")
    assert [row["row_id"] for row in made] == list(range(ROWS))
    assert made == rows_without_stats(tmp_path / "whole.parquet")
    report = json.loads((tmp_path / "killed.parquet.offgen" / "report.json").read_text(encoding="utf-8"))
    assert report["rows"] == ROWS and report["runs"] == kills + 1
    verify = [sys.executable, "-m", "offgen", "verify", str(tmp_path / "killed.parquet"), str(tmp_path / "in.jsonl")]
    subprocess.run(verify, env=environment(), check=True, timeout=120, stdout=subprocess.DEVNULL)
