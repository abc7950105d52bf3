"""Compiled kernels outlive the process that made them; and where weights are kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from offgen.backends import compile_ahead, compile_cache, cpu_pages

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


@pytest.mark.slow
def test_what_is_compiled_ahead_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFGEN_CACHE", str(tmp_path))
    compile_ahead.start(dtype="float32", quantization="none", kv_cache_dtype="auto")
    compile_ahead.finish()
    marks = sorted(path.name for path in tmp_path.rglob("compiled-*"))
    assert marks == ["compiled-float32-none-auto-0", "compiled-float32-none-auto-1"]
    assert use(tmp_path) == 1


def test_nothing_is_started_for_what_is_compiled_or_cannot_be_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_ahead.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    options = {"dtype": "float32", "quantization": "none", "kv_cache_dtype": "auto"}
    monkeypatch.setenv("OFFGEN_CACHE", str(tmp_path))
    folder = compile_cache.kernel_cache()
    for part in range(compile_ahead.PARTS):
        (folder / f"compiled-float32-none-auto-{part}").touch()
    compile_ahead.start(**options)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("OFFGEN_CACHE", str(blocked))
    compile_ahead.start(**options)


def test_memory_for_weights_is_as_asked():
    first, second = cpu_pages.empty(3, 5, dtype=torch.bfloat16), cpu_pages.empty(0, dtype=torch.float32)
    large = cpu_pages.empty(cpu_pages.ARENA_BYTES // 4 + 3, dtype=torch.float32)
    others = [cpu_pages.empty(1 << 20, dtype=torch.int8) for _ in range(20)]  # more than one arena
    assert (first.shape, first.dtype, second.numel()) == ((3, 5), torch.bfloat16, 0)
    for value, tensor in enumerate([first, large, *others]):
        assert tensor.is_contiguous() and tensor.data_ptr() % 64 == 0
        tensor.fill_(value)
    assert all(bool((tensor == value).all()) for value, tensor in enumerate([first, large, *others]))
