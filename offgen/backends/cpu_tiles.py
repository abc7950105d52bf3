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
from numba import njit, types
from numba.extending import intrinsic

from offgen.backends.cpu_simd import (
    F32,
    FEATURES,
    HAS_MANY_REGISTERS,
    I8,
    I16,
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
# the instruction that multiplies int16 in pairs and adds each pair, if this processor has one
PAIR_INSTRUCTIONS = {8: ("avx2", "llvm.x86.avx2.pmadd.wd"), 16: ("avx512bw", "llvm.x86.avx512.pmaddw.d.512")}
_feature, _name = PAIR_INSTRUCTIONS.get(LANES, ("", ""))
MULTIPLIES_PAIRS = _name if _feature in FEATURES else ""
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


def sum_of_products(bd: Any, group: int, sums: Any, a: Any, b: Any) -> Any:
    """sums int32 [LANES] + the products of each lane's `group` small integers, exactly.

    group 4: a uint8, b int8, by VNNI. group 2: both int16, by the instruction that x86 has for pairs, or spelled out.
    """
    if group == 4:
        return call(bd, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", VI32, [sums, a, b])
    if MULTIPLIES_PAIRS:
        a, b = (bd.bitcast(side, ir.VectorType(I16, 2 * LANES)) for side in (a, b))
        return bd.add(sums, call(bd, MULTIPLIES_PAIRS, VI32, [a, b]))
    sixteen = ir.Constant(VI32, [16] * LANES)
    high = bd.mul(bd.ashr(a, sixteen), bd.ashr(b, sixteen))
    low = bd.mul(bd.ashr(bd.shl(a, sixteen), sixteen), bd.ashr(bd.shl(b, sixteen), sixteen))
    return bd.add(sums, bd.add(high, low))


@intrinsic(prefer_literal=True)
def int8_tile(
    _: Any,
    num_rows: Any,
    group: Any,
    ahead: Any,
    step: Any,
    a: Any,
    lda: Any,
    b: Any,
    row_scales: Any,
    columns: Any,
    c: Any,
    ldc: Any,
    steps: Any,
) -> Any:
    """C float32 = A [rows, steps * group] times one panel of B int8 [steps, TILE_COLUMNS, group], scaled back.

    group       4: A is uint8 (needs VNNI); 2: A is int16
    row_scales  address of a float32 a row
    columns     address of [3, TILE_COLUMNS]: scales (float32), what is taken off the exact sums (int32), bias (float32)

    C = float(sum - correction) * row scale * column scale + bias, in this order. Meanwhile memory from `ahead` on is
    fetched, `step` bytes (at most 64) for each of the steps.
    """
    if not all(isinstance(given, types.IntegerLiteral) for given in (num_rows, group)):
        return None
    rows, size = literal_int(num_rows), literal_int(group)

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        _, _, ahead, fetched, a, lda, b, row_scales, told, c, ldc, steps = args
        ask = ask_ahead(bd, ahead, fetched, 1)
        panel = pointer(bd, b)
        a_rows = row_pointers(bd, a, lda, rows)

        def column(where: Any) -> Any:
            if size == 4:
                return load(bd, where, VI32, 4)
            pairs = load(bd, where, ir.VectorType(I8, 2 * LANES), 2)
            return bd.bitcast(bd.sext(pairs, ir.VectorType(I16, 2 * LANES)), VI32)

        def body(k: Any, flat: Any) -> list[Any]:
            ask(k)
            at_k = offset(bd, panel, bd.mul(k, I64(TILE_COLUMNS * size)))
            columns = [column(offset(bd, at_k, n * LANES * size)) for n in range(TILE_VECTORS)]
            following = []
            for m, row in enumerate(a_rows):
                together = splat(bd, load(bd, offset(bd, row, bd.mul(k, I64(4))), I32, 4))
                following += [
                    sum_of_products(bd, size, flat[m * TILE_VECTORS + n], together, values)
                    for n, values in enumerate(columns)
                ]
            return following

        zero = ir.Constant(VI32, [0] * LANES)
        flat = count_up(bd, steps, [zero] * (rows * TILE_VECTORS), body)
        where, scales = pointer(bd, told), pointer(bd, row_scales)
        for n in range(TILE_VECTORS):
            at = n * LANES * 4
            scale = load(bd, offset(bd, where, at), VF32, 4)
            correction = load(bd, offset(bd, where, TILE_COLUMNS * 4 + at), VI32, 4)
            bias = load(bd, offset(bd, where, 2 * TILE_COLUMNS * 4 + at), VF32, 4)
            for m, row in enumerate(row_pointers(bd, c, ldc, rows)):
                exact = bd.sitofp(bd.sub(flat[m * TILE_VECTORS + n], correction), VF32)
                row_scale = splat(bd, load(bd, offset(bd, scales, 4 * m), F32, 4))
                value = bd.fadd(bd.fmul(bd.fmul(exact, row_scale), scale), bias)
                store(bd, value, offset(bd, row, at))
        return context.get_dummy_value()

    return types.void(num_rows, group, *[types.int64] * 10), codegen


@njit(inline="always")
def int8_rows(height, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps):  # type: ignore[no-untyped-def]
    """The tile of any height up to TILE_ROWS."""
    if TILE_ROWS == 8 and height == 8:
        int8_tile(8, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)
    elif TILE_ROWS == 8 and height == 7:
        int8_tile(7, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)
    elif height == 6:
        int8_tile(6, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)
    elif height == 5:
        int8_tile(5, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)
    elif height == 4:
        int8_tile(4, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)
    elif height == 3:
        int8_tile(3, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)
    elif height == 2:
        int8_tile(2, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)
    else:
        int8_tile(1, group, ahead, step, a, lda, b, row_scales, columns, c, ldc, steps)


@njit(inline="always")
def take_edge(edge, out, num_rows, width, stride):  # type: ignore[no-untyped-def]
    """Copy the columns that the last panel really has, from a whole tile into the result."""
    for m in range(num_rows):
        for n in range(width):
            out[m * stride + n] = edge[m, n]
