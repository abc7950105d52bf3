"""Linear layers and row-wise ops on the CPU, against plain torch at odd sizes, and against themselves bit for bit."""

from __future__ import annotations

import pytest
import torch
from offgen_kernels import reference

SHAPES = [(1, 1), (3, 7), (48, 64), (100, 77), (576, 130)]  # out, in
ROWS = [1, 2, 3, 7, 8, 9, 31, 100]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_biased", [False, True])
def test_linear_equals_torch(cpu, shape, is_biased):
    weight = torch.randn(shape)
    bias = torch.randn(shape[0]) if is_biased else None
    linear = cpu.linear(weight, bias)
    assert (linear.out_features, linear.in_features) == shape
    for rows in ROWS:
        x = torch.randn(rows, shape[1])
        expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        torch.testing.assert_close(linear(x).double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_has_the_same_bits_in_any_batch(backend_of, quantization, dtype):
    backend = backend_of("cpu", quantization=quantization, dtype=dtype)
    linear = backend.linear(torch.randn(200, 300), torch.randn(200))
    x = torch.randn(700, 300)  # more rows than one block
    whole = linear(x)
    for rows in range(1, 129):
        first = (rows * 37) % (700 - rows)
        assert torch.equal(linear(x[first : first + rows]), whole[first : first + rows])
    order = torch.randperm(700)
    assert torch.equal(linear(x[order]), whole[order])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights_are_summed_in_float32(backend_of, dtype):
    backend = backend_of("cpu", dtype=dtype)
    weight = torch.randn(50, 70).to(getattr(torch, dtype))
    x = torch.randn(9, 70) * 1e4  # products beyond what float16 holds
    torch.testing.assert_close(backend.linear(weight)(x), x @ weight.float().T, rtol=1e-5, atol=0.5)


def test_inputs_of_other_dtypes_and_strides(cpu):
    weight = torch.randn(20, 30)
    linear = cpu.linear(weight)
    x = torch.randn(5, 60)
    torch.testing.assert_close(linear(x[:, ::2]), x[:, ::2] @ weight.T, atol=1e-4, rtol=1e-4)
    assert linear(x[:, :30].bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_is_the_reference_bit_for_bit(backend_of, shape):
    from offgen.backends.cpu_int8 import PAIRS, Int8Linear
    from offgen.backends.cpu_pool import Pool

    weight, bias = torch.randn(shape), torch.randn(shape[0])
    linear = backend_of("cpu", quantization="int8").linear(weight, bias)
    in_pairs = Int8Linear(Pool(1), weight, bias, group=PAIRS)  # what processors without VNNI run
    values, scales = reference.quantize_rows(weight)
    for rows in ROWS:
        x = torch.randn(rows, shape[1])
        x[0] = 0.0
        expected = reference.int8_linear(x, values, scales, bias)
        assert torch.equal(linear(x), expected)
        assert torch.equal(in_pairs(x), expected)


def test_int8_error_stays_within_its_bound(backend_of):
    weight, x = torch.randn(300, 500), torch.randn(40, 500)
    out, exact = backend_of("cpu", quantization="int8").linear(weight)(x), x @ weight.T
    assert (out - exact).norm() < 0.015 * exact.norm()


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_row_with_nan_or_infinity_stays_alone(backend_of, quantization):
    linear = backend_of("cpu", quantization=quantization).linear(torch.randn(60, 40))
    x = torch.randn(9, 40)
    clean = linear(x)
    for bad in (float("nan"), float("inf")):
        dirty = x.clone()
        dirty[4, 3] = bad
        out = linear(dirty)
        assert not torch.isfinite(out[4]).any()
        assert torch.equal(out[[0, 1, 2, 3, 5, 6, 7, 8]], clean[[0, 1, 2, 3, 5, 6, 7, 8]])


@pytest.mark.parametrize("size", [1, 12, 63, 576, 2000])
def test_row_ops_equal_reference(cpu, size):
    for rows in (1, 2, 5, 100):
        x, residual, weight = torch.randn(rows, size), torch.randn(rows, size), torch.rand(size)
        close = {"atol": 2e-6, "rtol": 2e-6}
        torch.testing.assert_close(cpu.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), **close)
        expected = reference.add_rms_norm(x, residual, weight, 1e-5)
        for ours, theirs in zip(cpu.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5), expected, strict=True):
            torch.testing.assert_close(ours, theirs, **close)
        gate_up = torch.randn(rows, 2 * size) * 6
        torch.testing.assert_close(cpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up), **close)
        for kind in ("none", "tanh"):
            exact = reference.gelu_and_mul(gate_up.double(), kind)  # float32's own erf loses the lower tail
            torch.testing.assert_close(cpu.gelu_and_mul(gate_up, kind).double(), exact, atol=2e-6, rtol=3e-6)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 100.0, -100.0, 1e4, -1e4, 3e38, -3e38])
def test_activations_at_the_ends_of_the_range(cpu, value):
    x = torch.tensor([[value, 2.0]])
    torch.testing.assert_close(cpu.silu_and_mul(x), reference.silu_and_mul(x))
    for kind in ("none", "tanh"):
        torch.testing.assert_close(cpu.gelu_and_mul(x, kind), reference.gelu_and_mul(x, kind))


def test_row_ops_have_the_same_bits_in_any_batch(cpu):
    x, weight = torch.randn(130, 600), torch.rand(300)
    whole = (cpu.silu_and_mul(x), cpu.gelu_and_mul(x, "none"), cpu.rms_norm(x[:, :300], weight, 1e-6))
    for first, rows in ((0, 1), (3, 2), (5, 63), (2, 128)):
        part = x[first : first + rows]
        ours = (cpu.silu_and_mul(part), cpu.gelu_and_mul(part, "none"), cpu.rms_norm(part[:, :300], weight, 1e-6))
        for alone, together in zip(ours, whole, strict=True):
            assert torch.equal(alone, together[first : first + rows])


def test_embedding_is_float32_of_the_stored_rows(backend_of):
    table = torch.randn(10, 6).bfloat16()
    out = backend_of("cpu", dtype="bfloat16").embedding(torch.tensor([3, 0, 3]), table)
    assert out.dtype == torch.float32 and torch.equal(out, table[[3, 0, 3]].float())


def test_without_an_openmp_entry_python_threads_do_the_work(monkeypatch):
    from offgen.backends import cpu_pool
    from offgen.backends.cpu_linear import PackedLinear

    weight, x = torch.randn(300, 200), torch.randn(50, 200)
    expected = PackedLinear(cpu_pool.Pool(2), weight, None)(x)
    monkeypatch.setattr(cpu_pool, "_openmp", lambda: (None, 0))
    assert torch.equal(PackedLinear(cpu_pool.Pool(3), weight, None)(x), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_bit(backend_of, threads):
    weight, x = torch.randn(300, 200), torch.randn(50, 200)
    expected = backend_of("cpu").linear(weight)(x)
    assert torch.equal(backend_of("cpu", threads=threads).linear(weight)(x), expected)
    backend_of("cpu")  # torch's thread count is the process's: set it back
