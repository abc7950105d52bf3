"""Rounding to e4m3, the FP8 format of the cache and of quantized weights."""

from __future__ import annotations

import triton
import triton.language as tl

_IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def to_e4m3(x):
    """x float32 within ±448, to the nearest e4m3, ties to even."""
    if _IS_INTERPRETED:
        # the interpreter's cast forgets to carry into the exponent: hand it what needs no rounding
        exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
        exponent = tl.maximum(exponent, -6)  # below 2^-6 steps stay at 2^-9
        step = tl.exp2((exponent - 3).to(tl.float32))
        x = (x / step + 12582912.0 - 12582912.0) * step  # 1.5 * 2^23: adding it rounds to an integer
    return x.to(tl.float8e4nv)
