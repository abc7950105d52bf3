"""The batch-invariant linear layer: right, and the same bits at every number of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from offgen_kernels.matmul_invariant import matmul_invariant


def randn(*shape, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_outputs", "size"), [(1, 1), (63, 100), (130, 200)])
def test_matmul_invariant(device, num_outputs, size, dtype):
    weight, bias = randn(num_outputs, size, dtype=dtype, device=device), randn(num_outputs, dtype=dtype, device=device)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    for num_rows in (0, 1, 70):
        x = randn(num_rows, size, dtype=dtype, device=device, seed=1)
        expected = F.linear(x.float(), weight.float(), bias.float()).to(dtype)
        torch.testing.assert_close(matmul_invariant(x, weight, bias), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("dots_in_order")
def test_a_row_has_the_same_bits_at_every_number_of_rows(device):
    weight, x = randn(100, 300, device=device), randn(40, 300, device=device, seed=1)
    whole = matmul_invariant(x, weight)
    for first, last in ((0, 1), (3, 5), (33, 40)):
        assert torch.equal(matmul_invariant(x[first:last], weight), whole[first:last])


@pytest.mark.gpu
@pytest.mark.parametrize(("num_outputs", "size"), [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)])
def test_rows_of_an_8b_have_the_same_bits_at_every_number_of_rows(num_outputs, size):
    weight = randn(num_outputs, size, dtype=torch.bfloat16, device="cuda")
    x = randn(2048, size, dtype=torch.bfloat16, device="cuda", seed=1)
    whole = matmul_invariant(x, weight)
    for num_rows in (1, 2, 7, 32, 256):
        for first in (0, 5, 2048 - num_rows):
            assert torch.equal(matmul_invariant(x[first : first + num_rows], weight), whole[first : first + num_rows])
