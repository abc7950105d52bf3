"""A linear layer whose every output row is summed in one order, whatever rows stand beside it.

    out = x @ w^T + b;     sums over K in steps of BLOCK_K, in one program, in fp32

The tile is a function of the weight's shape alone, never of the number of rows, so K is never split and the same
instruction sums a row at M = 1 and at M = 2048. Vendor libraries choose by M; these bits do not depend on it.
Source: Thinking Machines, Defeating Nondeterminism in LLM Inference (2025). Bytes: (M * K + N * K + M * N) * itemsize.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.device import backend_name, cdiv

_GROUP = 8  # row tiles that share weight tiles while those are in L2


@triton.jit(do_not_specialize=["num_rows"])
def _matmul_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    STAGES: tl.constexpr,
):
    tiles_m = tl.cdiv(num_rows, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = tl.program_id(0) // (GROUP * tiles_n)
    group_size = tl.minimum(tiles_m - group * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * tiles_n)
    tile_m = group * GROUP + within % group_size
    tile_n = within // group_size

    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x_ptr + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    w_at = w_ptr + n.to(tl.int64)[None, :] * K + k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        is_k = start + k < K
        x = tl.load(x_at, mask=(m < num_rows)[:, None] & is_k[None, :], other=0.0)
        w = tl.load(w_at, mask=(n < N)[None, :] & is_k[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        x_at += BLOCK_K
        w_at += BLOCK_K
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    out_at = out_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=(m < num_rows)[:, None] & (n < N)[None, :])


def matmul_tile(num_outputs: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """BLOCK_M, BLOCK_N, BLOCK_K, stages. Narrow weights get smaller tiles, so that every processor has one."""
    if dtype == torch.float32:  # no tensor cores
        return 32, 64, 32, 2
    if backend_name() == "hip":  # 64 KiB of shared memory
        return 64, 128, 64, 2
    return (64, 256, 64, 4) if num_outputs >= 16384 else (64, 128, 64, 4)


def matmul_invariant(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K], weight [N, K] contiguous, bias [N] -> [..., N] in x's dtype."""
    num_outputs, size = weight.shape
    if x.shape[-1] != size or not weight.is_contiguous() or weight.dtype != x.dtype:
        raise ValueError(f"x {tuple(x.shape)} does not fit weight {tuple(weight.shape)}, contiguous, of {x.dtype}")
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, size)
    out = torch.empty(*x.shape[:-1], num_outputs, dtype=x.dtype, device=x.device)
    if rows.shape[0]:
        block_m, block_n, block_k, stages = matmul_tile(num_outputs, x.dtype)
        _matmul_kernel[(cdiv(rows.shape[0], block_m) * cdiv(num_outputs, block_n),)](
            rows, weight, bias, out, rows.shape[0], rows.stride(0), N=num_outputs, K=size, BLOCK_M=block_m,
            BLOCK_N=block_n, BLOCK_K=block_k, GROUP=_GROUP, HAS_BIAS=bias is not None, STAGES=stages, num_warps=4,
        )  # fmt: skip
    return out
