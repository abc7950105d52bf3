"""A job killed at any moment loses nothing that was durable, and ends as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAMES = [
    "folder", "shuffled", "widening", "retry", "samples", "lines-folder", "lines-retry", "parquet-file", "arrow-file",
    "gzip-file",
]  # fmt: skip


def program(name: str, *args: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / name), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.mark.parametrize("name", ["folder", "retry", "gzip-file"])
def test_some_disk_operations_may_be_the_last(name: str) -> None:
    done = program("kill_everywhere.py", name, "7", "loses")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("power", ["keeps", "loses"])
@pytest.mark.parametrize("name", NAMES)
def test_every_disk_operation_may_be_the_last(name: str, power: str) -> None:
    """`loses`: what was not fsynced is gone too, as after a power cut."""
    done = program("kill_everywhere.py", name, "1", power, timeout_s=1800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sigkill_at_random_times() -> None:
    done = program("kill_randomly.py", "4")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_sigkill_at_many_random_times() -> None:
    done = program("kill_randomly.py", "60", timeout_s=1800)
    assert done.returncode == 0, done.stdout + done.stderr
