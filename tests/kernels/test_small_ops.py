"""Norms, activations, rotation and cache writes against reference.py, at odd sizes, into NaN-filled memory."""

from __future__ import annotations

import pytest
import torch
from offgen_kernels import reference
from offgen_kernels.gated_activation import gelu_and_mul, silu_and_mul
from offgen_kernels.quantize_rows_fp8 import quantize_rows_fp8
from offgen_kernels.reference_fp8 import dequantize_rows
from offgen_kernels.reference_fp8 import quantize_rows_fp8 as quantize_rows_fp8_reference
from offgen_kernels.rms_norm import add_rms_norm, rms_norm
from offgen_kernels.rope_and_write_kv import rope_and_write_kv
from offgen_kernels.write_kv import write_kv

DTYPES = [torch.float32, torch.float16]


def randn(*shape, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def close(out, expected):
    tolerance = 1e-5 if out.dtype == torch.float32 else 2e-3
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 63, 576, 2000])
def test_rms_norm(device, size, dtype):
    x, weight = randn(3, 2, size, dtype=dtype, device=device), randn(size, dtype=dtype, device=device, seed=1)
    close(rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    close(rms_norm(x[:, 0], weight, 1e-5), reference.rms_norm(x[:, 0], weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_writes_over_its_inputs(device, dtype):
    x, residual = randn(5, 100, dtype=dtype, device=device), randn(5, 100, dtype=dtype, device=device, seed=1)
    weight = randn(100, dtype=dtype, device=device, seed=2)
    expected = reference.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    close(normed, expected[0])
    close(total, expected[1])
    assert normed.data_ptr() == x.data_ptr()
    assert total.data_ptr() == residual.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 63, 1536])
def test_gated_activations(device, size, dtype):
    x = randn(3, 2 * size, dtype=dtype, device=device) * 4
    close(silu_and_mul(x), reference.silu_and_mul(x))
    for approximate in ("none", "tanh"):
        close(gelu_and_mul(x, approximate), reference.gelu_and_mul(x, approximate))
    assert silu_and_mul(x[:0]).shape == (0, size)


def test_gated_activations_of_large_values_stay_finite(device):
    x = torch.tensor([[-1e4, 1e4, 2.0, 2.0]], device=device)
    close(silu_and_mul(x), reference.silu_and_mul(x))
    close(gelu_and_mul(x, "tanh"), reference.gelu_and_mul(x, "tanh"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rotary_dim", "norms"),
    [(9, 3, 64, 64, ""), (4, 2, 128, 128, "qk"), (2, 2, 80, 32, ""), (3, 1, 12, 12, "q"), (4, 1, 16, 0, "k")],
)
def test_rope_and_write_kv(device, num_heads, num_kv_heads, head_dim, rotary_dim, norms, dtype):
    num_tokens, block_size = 7, 3
    qkv = randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype, device=device)
    angles = torch.rand(50, rotary_dim // 2, generator=torch.Generator().manual_seed(3)) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
    positions = torch.tensor([0, 1, 49, 3, 4, 5, 6], dtype=torch.int32, device=device)
    slots = torch.tensor([2, 8, 0, -1, 14, 13, 3], dtype=torch.int32, device=device)
    weights = {
        f"{side}_norm": randn(head_dim, dtype=dtype, device=device, seed=ord(side)) for side in "qk" if side in norms
    }
    shape = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, **weights}
    cache = torch.full((2, 5, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype, device=device)
    other = cache.transpose(2, 3).contiguous().transpose(2, 3)
    expected = reference.rope_and_write_kv(qkv, cos_sin, cache, positions, slots, **shape)
    close(rope_and_write_kv(qkv, cos_sin, other[0], other[1], positions, slots, **shape), expected)
    torch.testing.assert_close(other, cache, equal_nan=True, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_write_kv(device, dtype):
    k, v = randn(4, 3, 12, dtype=dtype, device=device), randn(4, 3, 12, dtype=dtype, device=device, seed=1)
    slots = torch.tensor([5, -1, 0, 11], dtype=torch.int32, device=device)
    cache = torch.full((2, 4, 3, 3, 12), float("nan"), dtype=dtype, device=device)
    ours = cache.clone()
    reference.write_kv(k, v, cache, slots)
    write_kv(k, v, ours[0], ours[1], slots)
    torch.testing.assert_close(ours, cache, equal_nan=True, rtol=0, atol=0)


def test_fp8_cache_keeps_a_scale_per_token_and_head(device):
    """Rows of very different size keep their precision; zeros stay zeros."""
    k = randn(3, 2, 16, device=device) * torch.tensor([1e-4, 1.0, 1e4], device=device).view(3, 1, 1)
    v = torch.zeros_like(k)
    cache = torch.zeros(2, 2, 4, 2, 16, dtype=torch.float8_e4m3fn, device=device)
    scales = torch.full((2, 2, 4, 2), float("nan"), device=device)
    slots = torch.tensor([0, 5, 7], dtype=torch.int32, device=device)
    write_kv(k, v, cache[0], cache[1], slots, k_scales=scales[0], v_scales=scales[1])
    stored = dequantize_rows(cache, scales).view(2, 8, 2, 16)[:, slots.long()]
    torch.testing.assert_close(stored[0], k, rtol=0.07, atol=0)
    assert (stored[1] == 0).all()


@pytest.mark.parametrize("size", [1, 63, 2000, 20000])
def test_quantize_rows_fp8(device, size):
    x = randn(4, size, device=device) * torch.tensor([1.0, 1e-6, 1e5, 0.0], device=device).view(4, 1)
    values, scale = quantize_rows_fp8(x)
    expected, expected_scale = quantize_rows_fp8_reference(x)
    torch.testing.assert_close(scale, expected_scale)
    torch.testing.assert_close(values.float(), expected.float(), rtol=0.13, atol=0)  # a step, where rounding ties
    assert (values.float() == expected.float()).float().mean() > 0.99
