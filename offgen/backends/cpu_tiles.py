"""The one matrix tile that everything is made of: C[m, n] = start[m, n] + sum over k of A[m, k] * B[k, n].

Accumulators stay in registers over the whole of k, and k is summed in order, one fused multiply-add after another. So
the bits of C[m, n] depend on row m of A and column n of B alone: not on how many rows a tile has, nor on where the row
sits.
Linear layers, query times key, and weight times value are this tile with different strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from offgen.backends.cpu_simd import (
    F32,
    HAS_MANY_REGISTERS,
    I64,
    ITEMSIZE,
    LANES,
    VF32,
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

        # the shorter side is held in registers, the longer one passes through one of them
        def a(m: int) -> Any:
            return splat(bd, load(bd, offset(bd, rows[m], bd.mul(k, I64(4))), F32, 4))

        def b(n: int) -> Any:
            return load_as_float32(bd, offset(bd, columns[n], at_k), kind)

        following = list(flat)
        if len(rows) < len(columns):
            held = [a(m) for m in range(len(rows))]
            for n in range(len(columns)):
                passing = b(n)
                for m in range(len(rows)):
                    following[m * len(columns) + n] = multiply_add(bd, held[m], passing, flat[m * len(columns) + n])
        else:
            held = [b(n) for n in range(len(columns))]
            for m in range(len(rows)):
                passing = a(m)
                for n in range(len(columns)):
                    following[m * len(columns) + n] = multiply_add(bd, passing, held[n], flat[m * len(columns) + n])
        return following

    flat = count_up(bd, count, [value for row in start for value in row], body)
    width = len(columns)
    return [flat[m * width : (m + 1) * width] for m in range(len(rows))]


def literal_int(literal: Any) -> int:
    return int(literal.literal_value)


def row_pointers(bd: Any, address: Any, stride: Any, num_rows: int) -> list[Any]:
    return [pointer(bd, bd.add(address, bd.mul(stride, I64(m)))) for m in range(num_rows)]


def ask_ahead(bd: Any, ahead: Any, step: Any, lines: int) -> Callable[[Any], None]:
    """For each k ask for `lines` cache lines from ahead + k * step on, into the second-level cache."""

    def ask(k: Any) -> None:
        here = bd.add(ahead, bd.mul(k, step))
        for line in range(lines):
            emit_prefetch(bd, offset(bd, pointer(bd, here), 64 * line))

    return ask


def lines_ahead(kind: int) -> int:
    """Cache lines that a tile asks for at each k: as many as one or two k of a panel are long."""
    return 2 if TILE_COLUMNS * ITEMSIZE[kind] > 64 else 1


@intrinsic(prefer_literal=True)
def linear_tile(
    _: Any,
    num_rows: Any,
    kind: Any,
    ahead: Any,
    step: Any,
    a: Any,
    lda: Any,
    b: Any,
    start: Any,
    c: Any,
    ldc: Any,
    k: Any,
) -> Any:
    """C = start + A B for num_rows rows and one panel of B [k, TILE_COLUMNS]. Addresses; strides in bytes.

    start holds one value a column. Meanwhile memory from `ahead` on is fetched, `step` bytes for each k.
    """
    if not isinstance(num_rows, types.IntegerLiteral) or not isinstance(kind, types.IntegerLiteral):
        return None
    rows, stored_as = literal_int(num_rows), literal_int(kind)

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        _, _, ahead, fetched, a, lda, b, start, c, ldc, k = args
        width = LANES * ITEMSIZE[stored_as]
        panel = pointer(bd, b)
        columns = [offset(bd, panel, n * width) for n in range(TILE_VECTORS)]
        first = [load(bd, offset(bd, pointer(bd, start), n * LANES * 4), VF32, 4) for n in range(TILE_VECTORS)]
        step = I64(TILE_VECTORS * width)
        ask = ask_ahead(bd, ahead, fetched, lines_ahead(stored_as))
        sums = sum_over(bd, row_pointers(bd, a, lda, rows), columns, step, k, stored_as, [first] * rows, ask)
        for row, values in zip(row_pointers(bd, c, ldc, rows), sums, strict=True):
            for n, value in enumerate(values):
                store(bd, value, offset(bd, row, n * LANES * 4))
        return context.get_dummy_value()

    return types.void(num_rows, kind, *[types.int64] * 9), codegen


@njit(inline="always")
def linear_rows(height, kind, ahead, step, a, lda, b, start, c, ldc, k):  # type: ignore[no-untyped-def]
    """The tile of any height up to TILE_ROWS."""
    if TILE_ROWS == 8 and height == 8:
        linear_tile(8, kind, ahead, step, a, lda, b, start, c, ldc, k)
    elif TILE_ROWS == 8 and height == 7:
        linear_tile(7, kind, ahead, step, a, lda, b, start, c, ldc, k)
    elif height == 6:
        linear_tile(6, kind, ahead, step, a, lda, b, start, c, ldc, k)
    elif height == 5:
        linear_tile(5, kind, ahead, step, a, lda, b, start, c, ldc, k)
    elif height == 4:
        linear_tile(4, kind, ahead, step, a, lda, b, start, c, ldc, k)
    elif height == 3:
        linear_tile(3, kind, ahead, step, a, lda, b, start, c, ldc, k)
    elif height == 2:
        linear_tile(2, kind, ahead, step, a, lda, b, start, c, ldc, k)
    else:
        linear_tile(1, kind, ahead, step, a, lda, b, start, c, ldc, k)


@njit(inline="always")
def tile_height(rows_left):  # type: ignore[no-untyped-def]
    """Rows of the next tile: full ones, and the last two alike, since a low tile waits for its own sums."""
    if rows_left <= TILE_ROWS:
        return rows_left
    return TILE_ROWS if rows_left >= 2 * TILE_ROWS else (rows_left + 1) // 2


@njit(inline="always")
def take_edge(edge, out, num_rows, width, stride):  # type: ignore[no-untyped-def]
    """Copy the columns that the last panel really has, from a whole tile into the result."""
    for m in range(num_rows):
        for n in range(width):
            out[m * stride + n] = edge[m, n]
