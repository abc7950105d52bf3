"""Compiled kernels outlive the process that made them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

USE = """
import torch
from offgen.backends import open_backend
backend = open_backend("cpu", dtype="float32", threads=2)
out = backend.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-6)
assert out.shape == (2, 8)
from offgen.backends.cpu_rows import rms_norm_kernel
print(rms_norm_kernel.cache_hits)
"""


def use(cache, **environment):
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={**os.environ, "OFFGEN_CACHE": str(cache), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@pytest.mark.slow
def test_the_second_start_compiles_nothing(tmp_path):
    assert use(tmp_path) == 0
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert files and use(tmp_path) == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert use(blocked) == 0
