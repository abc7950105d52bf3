"""The one matrix tile that everything is made of: C[m, n] = start[m, n] + sum over k of A[m, k] * B[k, n].

Accumulators stay in registers over the whole of k, and k is summed in order, one fused multiply-add after another. So
the bits of C[m, n] depend on row m of A and column n of B alone: not on how many rows a tile has, nor on where the row
sits.
Linear layers, query times key, and weight times value are this tile with different strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from offgen.backends.cpu_simd import (
    F32,
    HAS_MANY_REGISTERS,
    I32,
    I64,
    ITEMSIZE,
    LANES,
    VF32,
    VI32,
    call,
    count_up,
    emit_prefetch,
    load,
    load_as_float32,
    multiply_add,
    offset,
    pointer,
    splat,
    store,
)

# rows x vectors of a linear layer's tile: the accumulators and one row of B fill the registers
TILE_ROWS, TILE_VECTORS = (8, 3) if HAS_MANY_REGISTERS else (6, 2)
TILE_COLUMNS = TILE_VECTORS * LANES
KEYS = 16  # keys of one stored key tile, at any vector width


def sum_over(
    bd: Any,
    rows: Sequence[Any],
    columns: Sequence[Any],
    step: Any,
    count: Any,
    kind: int,
    start: list[list[Any]],
    ask: Callable[[Any], None] = lambda k: None,
) -> list[list[Any]]:
    """start + sum over k < count of rows[m][k] * columns[n][k * step : + LANES]. Pointers, with step in bytes.

    ask     emits what else is to be done for each k
    """

    def body(k: Any, flat: Any) -> list[Any]:
        ask(k)
        at_k = bd.mul(k, step)
        b = [load_as_float32(bd, offset(bd, column, at_k), kind) for column in columns]
        following = []
        for m, row in enumerate(rows):
            a = splat(bd, load(bd, offset(bd, row, bd.mul(k, I64(4))), F32, 4))
            following += [multiply_add(bd, a, b[n], flat[m * len(columns) + n]) for n in range(len(columns))]
        return following

    flat = count_up(bd, count, [value for row in start for value in row], body)
    width = len(columns)
    return [flat[m * width : (m + 1) * width] for m in range(len(rows))]


def literal_int(literal: Any) -> int:
    return int(literal.literal_value)


def row_pointers(bd: Any, address: Any, stride: Any, num_rows: int) -> list[Any]:
    return [pointer(bd, bd.add(address, bd.mul(stride, I64(m)))) for m in range(num_rows)]


def ask_ahead(bd: Any, ahead: Any, lines: int) -> Callable[[Any], None]:
    """For each k ask for the next `lines` cache lines at the address `ahead`, into the second-level cache."""

    def ask(k: Any) -> None:
        for line in range(lines):
            emit_prefetch(bd, offset(bd, pointer(bd, ahead), bd.add(bd.mul(k, I64(64 * lines)), I64(64 * line))))

    return ask


@intrinsic(prefer_literal=True)
def linear_tile(
    _: Any,
    num_rows: Any,
    kind: Any,
    lines: Any,
    ahead: Any,
    a: Any,
    lda: Any,
    b: Any,
    start: Any,
    lds: Any,
    c: Any,
    ldc: Any,
    k: Any,
) -> Any:
    """C = start + A B for num_rows rows and one panel of B [k, TILE_COLUMNS]. Addresses; strides in bytes.

    Meanwhile `lines` cache lines for each k are fetched from `ahead` on.
    """
    if not all(isinstance(given, types.IntegerLiteral) for given in (num_rows, kind, lines)):
        return None
    rows, stored_as, num_lines = literal_int(num_rows), literal_int(kind), literal_int(lines)

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        _, _, _, ahead, a, lda, b, start, lds, c, ldc, k = args
        width = LANES * ITEMSIZE[stored_as]
        panel = pointer(bd, b)
        columns = [offset(bd, panel, n * width) for n in range(TILE_VECTORS)]
        first = [
            [load(bd, offset(bd, row, n * LANES * 4), VF32, 4) for n in range(TILE_VECTORS)]
            for row in row_pointers(bd, start, lds, rows)
        ]
        step = I64(TILE_VECTORS * width)
        ask = ask_ahead(bd, ahead, num_lines)
        sums = sum_over(bd, row_pointers(bd, a, lda, rows), columns, step, k, stored_as, first, ask)
        for row, values in zip(row_pointers(bd, c, ldc, rows), sums, strict=True):
            for n, value in enumerate(values):
                store(bd, value, offset(bd, row, n * LANES * 4))
        return context.get_dummy_value()

    return types.void(num_rows, kind, lines, *[types.int64] * 9), codegen


@intrinsic(prefer_literal=True)
def int8_tile(_: Any, num_rows: Any, a: Any, lda: Any, b: Any, c: Any, ldc: Any, k4: Any) -> Any:
    """C int32 = A uint8 [rows, 4 * k4] times one panel of B int8 [k4, TILE_COLUMNS, 4]. Exact. Needs VNNI."""
    if not isinstance(num_rows, types.IntegerLiteral):
        return None
    rows = literal_int(num_rows)

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        _, a, lda, b, c, ldc, k4 = args
        panel = pointer(bd, b)
        a_rows = row_pointers(bd, a, lda, rows)

        def body(k: Any, flat: Any) -> list[Any]:
            at_k = offset(bd, panel, bd.mul(k, I64(TILE_COLUMNS * 4)))
            columns = [load(bd, offset(bd, at_k, n * LANES * 4), VI32, 4) for n in range(TILE_VECTORS)]
            following = []
            for m, row in enumerate(a_rows):
                four = splat(bd, load(bd, offset(bd, row, bd.mul(k, I64(4))), I32, 4))
                for n, column in enumerate(columns):
                    sums = [flat[m * TILE_VECTORS + n], four, column]
                    following.append(call(bd, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", VI32, sums))
            return following

        zero = ir.Constant(VI32, [0] * LANES)
        flat = count_up(bd, k4, [zero] * (rows * TILE_VECTORS), body)
        for m, row in enumerate(row_pointers(bd, c, ldc, rows)):
            for n in range(TILE_VECTORS):
                store(bd, flat[m * TILE_VECTORS + n], offset(bd, row, n * LANES * 4))
        return context.get_dummy_value()

    return types.void(num_rows, *[types.int64] * 6), codegen
