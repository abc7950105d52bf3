"""The tile of 8-bit linear layers: integer sums in registers, scaled back before they leave. Knows one panel.

Sums are exact, so a row's bits do not depend on the tile's height, nor on how many neighbours in k are taken at once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from offgen.backends.cpu_simd import (
    F32,
    FEATURES,
    I8,
    I16,
    I32,
    I64,
    LANES,
    VF32,
    VI32,
    call,
    count_up,
    load,
    offset,
    pointer,
    splat,
    store,
)
from offgen.backends.cpu_tiles import TILE_COLUMNS, TILE_ROWS, TILE_VECTORS, ask_ahead, literal_int, row_pointers

# the instruction that multiplies int16 in pairs and adds each pair, if this processor has one
PAIR_INSTRUCTIONS = {8: ("avx2", "llvm.x86.avx2.pmadd.wd"), 16: ("avx512bw", "llvm.x86.avx512.pmaddw.d.512")}
_feature, _name = PAIR_INSTRUCTIONS.get(LANES, ("", ""))
MULTIPLIES_PAIRS = _name if _feature in FEATURES else ""


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


def store_scaled(bd: Any, sums: list[Any], row_scales: Any, columns: Any, targets: list[Any]) -> None:
    """Store a tile's sums, row by row [TILE_VECTORS] each, as int8_tile says: corrected, scaled, and with the bias."""
    where, scales = pointer(bd, columns), pointer(bd, row_scales)
    for n in range(TILE_VECTORS):
        at = n * LANES * 4
        scale = load(bd, offset(bd, where, at), VF32, 4)
        correction = load(bd, offset(bd, where, TILE_COLUMNS * 4 + at), VI32, 4)
        bias = load(bd, offset(bd, where, 2 * TILE_COLUMNS * 4 + at), VF32, 4)
        for m, target in enumerate(targets):
            exact = bd.sitofp(bd.sub(sums[m * TILE_VECTORS + n], correction), VF32)
            row_scale = splat(bd, load(bd, offset(bd, scales, 4 * m), F32, 4))
            value = bd.fadd(bd.fmul(bd.fmul(exact, row_scale), scale), bias)
            store(bd, value, offset(bd, target, at))


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
        store_scaled(bd, flat, row_scales, told, row_pointers(bd, c, ldc, rows))
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
