"""The gate of an MLP times its other half: SiLU or GELU.

    out = f(gate) * up
    f(x) = x * sigmoid(x)  |  x * Phi(x)  |  x * sigmoid(2 z), z = sqrt(2 / pi) * (x + 0.044715 x^3)

Source: Shazeer, GLU Variants (2020). Bytes: 3 * rows * F * itemsize.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offgen_kernels.device import cdiv, next_power_of_2

_SILU, _GELU, _GELU_TANH = 0, 1, 2
_BLOCK = 1024


@triton.jit
def _gated_kernel(x_ptr, out_ptr, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    i = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    is_in = i < SIZE
    gate = tl.load(x_ptr + row * x_stride + i, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + SIZE + i, mask=is_in, other=0.0).to(tl.float32)
    if KIND == 0:
        gate = gate * tl.sigmoid(gate)
    elif KIND == 1:
        gate = gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(out_ptr + row * SIZE + i, (gate * up).to(out_ptr.dtype.element_ty), mask=is_in)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 * F] as (gate, up) -> silu(gate) * up [..., F]."""
    return _launch(x, _SILU)


def gelu_and_mul(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """x [..., 2 * F] as (gate, up) -> gelu(gate) * up [..., F]; approximate is `none` or `tanh`."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate {approximate!r} is not none or tanh")
    return _launch(x, _GELU if approximate == "none" else _GELU_TANH)


def _launch(x: torch.Tensor, kind: int) -> torch.Tensor:
    if x.shape[-1] % 2:
        raise ValueError(f"a row of {x.shape[-1]} has no two halves")
    size = x.shape[-1] // 2
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, 2 * size)
    out = torch.empty(*x.shape[:-1], size, dtype=x.dtype, device=x.device)
    block = min(_BLOCK, next_power_of_2(size))
    if rows.shape[0]:
        _gated_kernel[(rows.shape[0] * cdiv(size, block),)](
            rows, out, rows.stride(0), SIZE=size, BLOCK=block, KIND=kind, num_warps=4
        )
    return out
