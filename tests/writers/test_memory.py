"""Resident memory does not grow with the number of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("output", ["folder", "parquet", "jsonl"])
def test_memory_at_the_end_is_memory_at_the_start(output: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "data_plane.py"), "--rows", "200000", "--output", output]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    done = subprocess.run([*command, "--folder", str(tmp_path)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["rss_90_mb"] <= 1.15 * figures["rss_10_mb"], figures
