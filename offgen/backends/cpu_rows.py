"""Ops that look at one row at a time: norms and gated activations. Loops that LLVM vectorises along the row.

Sums may be reassociated into vector lanes: an order fixed by the row's length, never by its neighbours.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types

from offgen.backends.cpu_simd import ITEMSIZE, exp_float32, fetch_add, float32_at, float_of, int64_at, widened

KERNEL = types.void(types.CPointer(types.int64))
ROWS = 4  # rows a worker takes at a time
FAST = {"reassoc", "contract", "nsz"}
SILU, GELU, GELU_TANH = 0, 1, 2


@cache
def embedding_kernel(kind: int) -> Any:
    """out [T, E] = rows of the table, widened. Arguments: T, E, token ids (int64), table, out."""
    item = ITEMSIZE[kind]

    @cfunc(KERNEL, cache=True)
    def kernel(memory):  # type: ignore[no-untyped-def]
        args = carray(memory, 7)
        num_rows, count, ids = args[2], args[3], int64_at(args[4])
        while True:
            first = fetch_add(args.ctypes.data, ROWS)
            if first >= num_rows:
                break
            for row in range(first, min(num_rows, first + ROWS)):
                source, out = args[5] + ids[row] * count * item, float32_at(args[6] + row * count * 4)
                for i in range(count):
                    out[i] = widened(kind, source + i * item)

    return kernel


@njit(fastmath=FAST, error_model="numpy")
def norm_row(x, weight, out, count, eps):  # type: ignore[no-untyped-def]
    """out = x / sqrt(mean(x^2) + eps) * weight."""
    total = types.float32(0.0)
    for i in range(count):
        total += x[i] * x[i]
    scale = types.float32(1.0) / np.sqrt(total / types.float32(count) + types.float32(eps))
    for i in range(count):
        out[i] = (x[i] * scale) * weight[i]


@cfunc(KERNEL, cache=True)
def rms_norm_kernel(memory):  # type: ignore[no-untyped-def]
    """Arguments: rows, row length, x, weight, eps, out."""
    args = carray(memory, 8)
    num_rows, count, weight, eps = args[2], args[3], float32_at(args[5]), float_of(args[6])
    while True:
        first = fetch_add(args.ctypes.data, ROWS)
        if first >= num_rows:
            break
        for row in range(first, min(num_rows, first + ROWS)):
            at = row * count * 4
            norm_row(float32_at(args[4] + at), weight, float32_at(args[7] + at), count, eps)


@cfunc(KERNEL, cache=True)
def add_rms_norm_kernel(memory):  # type: ignore[no-untyped-def]
    """Arguments: rows, row length, x, residual (becomes the sum), weight, eps, out (may be x)."""
    args = carray(memory, 9)
    num_rows, count, weight, eps = args[2], args[3], float32_at(args[6]), float_of(args[7])
    while True:
        first = fetch_add(args.ctypes.data, ROWS)
        if first >= num_rows:
            break
        for row in range(first, min(num_rows, first + ROWS)):
            at = row * count * 4
            x, residual = float32_at(args[4] + at), float32_at(args[5] + at)
            for i in range(count):
                residual[i] += x[i]
            norm_row(residual, weight, float32_at(args[8] + at), count, eps)


@njit(fastmath={"contract", "nsz"}, error_model="numpy")
def silu_row(gate, up, out, count):  # type: ignore[no-untyped-def]
    one = types.float32(1.0)
    for i in range(count):
        out[i] = gate[i] / (one + exp_float32(-gate[i])) * up[i]


@njit(fastmath={"contract", "nsz"}, error_model="numpy")
def gelu_tanh_row(gate, up, out, count):  # type: ignore[no-untyped-def]
    """x * sigmoid(2 z) is x * (1 + tanh(z)) / 2, with z = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    f = types.float32
    for i in range(count):
        x = gate[i]
        z2 = f(1.5957691216057308) * (x + f(0.044715) * x * x * x)
        out[i] = x / (f(1.0) + exp_float32(-z2)) * up[i]


@njit(fastmath={"contract", "nsz"}, error_model="numpy")
def gelu_row(gate, up, out, count):  # type: ignore[no-untyped-def]
    """x * Phi(x) = x * erfc(-x / sqrt(2)) / 2, by the fit of Numerical Recipes' erfcc (1.2e-7 relative, tails too)."""
    for i in range(count):
        x = types.float64(gate[i])
        z = abs(x) * 0.7071067811865476
        t = 1.0 / (1.0 + 0.5 * z)
        p = -0.82215223 + t * 0.17087277
        p = 0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * p))
        p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * p))))
        exponent = max(p - z * z, -87.0)
        rounded = types.float32(exponent)
        tail = 0.5 * t * types.float64(exp_float32(rounded)) * (1.0 + (exponent - types.float64(rounded)))
        out[i] = types.float32(x * (1.0 - tail if x > 0.0 else tail)) * up[i]


@cache
def gated_kernel(activation: int) -> Any:
    """out [T, F] = activation(gate) * up. Arguments: rows, F, x [T, 2 F], out."""

    @cfunc(KERNEL, cache=True)
    def kernel(memory):  # type: ignore[no-untyped-def]
        args = carray(memory, 6)
        num_rows, count = args[2], args[3]
        while True:
            first = fetch_add(args.ctypes.data, ROWS)
            if first >= num_rows:
                break
            for row in range(first, min(num_rows, first + ROWS)):
                gate = float32_at(args[4] + row * count * 8)
                up = float32_at(args[4] + row * count * 8 + count * 4)
                out = float32_at(args[5] + row * count * 4)
                if activation == SILU:
                    silu_row(gate, up, out, count)
                elif activation == GELU:
                    gelu_row(gate, up, out, count)
                else:
                    gelu_tanh_row(gate, up, out, count)

    return kernel
