"""What the compiler makes of the kernels for GPUs that are not here: registers, shared memory, loads, buffers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIANTS = Path(__file__).parents[2] / "kernels" / "bench" / "variants.py"
SHARED_LIMIT = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
ATTENTION = {"split_attention_kernel", "_prefill_attention_kernel"}
SAMPLE = ["decode-llama-3.1-8b", "small-ops"]


def compile_for(target: str, *names: str) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    run = subprocess.run(
        [sys.executable, str(VARIANTS), "--target", target, *names],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def check(kernels: list[dict], target: str) -> None:
    assert kernels
    for kernel in kernels:
        assert kernel["spill_bytes"] == 0, kernel
        assert kernel["shared_bytes"] <= SHARED_LIMIT[target], kernel
        is_half = "float32" not in kernel["variant"]
        if not target.startswith("sm_"):
            continue
        if kernel["name"] in ATTENTION and is_half:
            assert kernel["buffers"], kernel
            assert min(kernel["buffers"]) >= 2, kernel
            assert "16" in kernel["async_loads"], kernel
        if kernel["name"] == "_matmul_kernel":
            assert min(kernel["buffers"]) >= 3, kernel
        if kernel["name"] in {"_sample_kernel", "_token_logprobs_kernel", "_top_logprobs_kernel", "_matmul_kernel"}:
            assert set(kernel["async_loads"]) == {"16"}, kernel


def test_decode_attention_and_small_ops_compile_well_for_sm_90():
    check(compile_for("sm_90", *SAMPLE), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_variants_compile_well(target):
    check(compile_for(target, *_names_for(target)), target)


def _names_for(target: str) -> list[str]:
    """All for the GPU this is tuned for; elsewhere every op once. sm_80 has no e4m3, gfx942 has another one."""
    sys.path.insert(0, str(VARIANTS.parent))
    try:
        from variants import variants
    finally:
        sys.path.pop(0)
    if target == "sm_90":
        return list(variants())
    models = ("qwen3-0.6b", "phi-96", "phi-80", "falcon-7b")
    names = [name for name in variants() if not any(model in name for model in models)]
    return names if target == "sm_100" else [name for name in names if "fp8" not in name and name != "quantize"]


@pytest.mark.parametrize("module", ["offgen_kernels", "offgen_kernels.reference", "offgen_kernels.reference_sampling"])
def test_the_specification_needs_neither_triton_nor_offgen(module):
    code = f"import sys, {module}; assert not {{'triton', 'offgen'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(VARIANTS.parents[1])})
