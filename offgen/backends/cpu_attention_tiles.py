"""The three steps of attention over one span of keys, in registers. Knows vectors; the loop around is cpu_attention's.

Scores and weighted values are the tile of cpu_tiles: sums in order of k; their bits depend on row and column alone.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from offgen.backends.cpu_simd import (
    F32,
    I32,
    I64,
    ITEMSIZE,
    LANES,
    VF32,
    VI32,
    constant,
    count_up,
    exponential,
    fold,
    load,
    maximum,
    offset,
    pointer,
    splat,
    store,
)
from offgen.backends.cpu_tiles import KEYS, literal_int, row_pointers, sum_over

SPAN_TILES = 4
SPAN = SPAN_TILES * KEYS  # keys that one softmax update covers, counted from position 0
COLUMNS = 4  # vectors side by side in a tile


def _addresses(bd: Any, array: Any, count: int) -> list[Any]:
    where = pointer(bd, array)
    return [pointer(bd, load(bd, offset(bd, where, 8 * i), I64, 8)) for i in range(count)]


@intrinsic(prefer_literal=True)
def score_tile(_: Any, num_rows: Any, kind: Any, q: Any, ldq: Any, tiles: Any, scores: Any, dim: Any) -> Any:
    """scores [rows, SPAN] = q [rows, dim] times the key tiles [dim, KEYS] at the SPAN_TILES addresses in `tiles`."""
    if not isinstance(num_rows, types.IntegerLiteral) or not isinstance(kind, types.IntegerLiteral):
        return None
    rows, stored_as = literal_int(num_rows), literal_int(kind)

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        _, _, q, ldq, tiles, scores, dim = args
        size = ITEMSIZE[stored_as]
        queries = row_pointers(bd, q, ldq, rows)
        parts = [
            offset(bd, tile, lane * size)
            for tile in _addresses(bd, tiles, SPAN_TILES)
            for lane in range(0, KEYS, LANES)
        ]
        targets = row_pointers(bd, scores, I64(SPAN * 4), rows)
        for first in range(0, len(parts), COLUMNS):
            columns = parts[first : first + COLUMNS]
            zero = [[constant(0.0)] * len(columns) for _ in range(rows)]
            sums = sum_over(bd, queries, columns, I64(KEYS * size), dim, stored_as, zero)
            for target, values in zip(targets, sums, strict=True):
                for n, value in enumerate(values):
                    store(bd, value, offset(bd, target, (first + n) * LANES * 4))
        return context.get_dummy_value()

    return types.void(num_rows, kind, *[types.int64] * 5), codegen


@intrinsic(prefer_literal=True)
def value_tile(
    _: Any,
    num_rows: Any,
    kind: Any,
    vectors: Any,
    weights: Any,
    tiles: Any,
    skip: Any,
    step: Any,
    num_keys: Any,
    out: Any,
    ldo: Any,
) -> Any:
    """out [rows, vectors * LANES] += weights [rows, SPAN] times the value tiles at the addresses in `tiles`.

    `skip` bytes into a tile's row the columns begin; `step` bytes lie between its rows, ldo between those of out.
    """
    if not all(isinstance(given, types.IntegerLiteral) for given in (num_rows, kind, vectors)):
        return None
    rows, stored_as, width = literal_int(num_rows), literal_int(kind), literal_int(vectors)

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        _, _, _, weights, tiles, skip, step, num_keys, out, ldo = args
        table = pointer(bd, tiles)
        weight_rows = row_pointers(bd, weights, I64(SPAN * 4), rows)
        places = [[offset(bd, row, n * LANES * 4) for n in range(width)] for row in row_pointers(bd, out, ldo, rows)]
        start = [load(bd, place, VF32, 4) for row in places for place in row]

        def one_tile(tile: Any, flat: Any) -> list[Any]:
            key = bd.mul(tile, I64(KEYS))
            left = bd.sub(num_keys, key)
            here = bd.select(bd.icmp_signed("<", left, I64(KEYS)), left, I64(KEYS))
            v = pointer(bd, bd.add(load(bd, offset(bd, table, bd.mul(tile, I64(8))), I64, 8), skip))
            columns = [offset(bd, v, n * LANES * ITEMSIZE[stored_as]) for n in range(width)]
            at_key = [offset(bd, row, bd.mul(key, I64(4))) for row in weight_rows]
            grid = [list(flat[m * width : (m + 1) * width]) for m in range(rows)]
            return [value for row in sum_over(bd, at_key, columns, step, here, stored_as, grid) for value in row]

        num_tiles = bd.sdiv(bd.add(num_keys, I64(KEYS - 1)), I64(KEYS))
        sums = count_up(bd, num_tiles, start, one_tile)
        for value, place in zip(sums, [place for row in places for place in row], strict=True):
            store(bd, value, place)
        return context.get_dummy_value()

    return types.void(num_rows, kind, vectors, *[types.int64] * 7), codegen


@intrinsic
def softmax_span(_: Any, scores: Any, lowest: Any, highest: Any, state: Any, out: Any, vectors: Any) -> Any:
    """One row's scores [SPAN] become exp(score - maximum so far); keys outside [lowest, highest) weigh 0.

    state [2, LANES] holds the maximum (in lane 0) and the lanes of the sum. A new maximum scales the sum and out
    [vectors * LANES]; otherwise both stay as they are, so a span without keys changes no bit.
    """

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        scores, lowest, highest, state, out, vectors = args
        row, memory, target = pointer(bd, scores), pointer(bd, state), pointer(bd, out)
        low, high = (splat(bd, bd.trunc(bound, I32)) for bound in (lowest, highest))
        hidden = constant(float("-inf"))
        visible = []
        for first in range(0, SPAN, LANES):
            key = ir.Constant(VI32, [first + lane for lane in range(LANES)])
            is_seen = bd.and_(bd.icmp_signed(">=", key, low), bd.icmp_signed("<", key, high))
            visible.append(bd.select(is_seen, load(bd, offset(bd, row, first * 4), VF32, 4), hidden))
        largest = visible[0]
        for values in visible[1:]:
            largest = maximum(bd, largest, values)
        old = load(bd, memory, F32, 4)
        new = maximum(bd, fold(bd, largest, lambda x, y: maximum(bd, x, y)), old)
        is_empty = bd.fcmp_ordered("==", new, F32(float("-inf")))
        shift = splat(bd, bd.select(is_empty, F32(0.0), new))
        total = constant(0.0)
        for n, values in enumerate(visible):
            weights = exponential(bd, bd.fsub(values, shift))
            store(bd, weights, offset(bd, row, n * LANES * 4))
            total = bd.fadd(total, weights)
        lanes = offset(bd, memory, LANES * 4)
        has_grown = bd.fcmp_ordered(">", new, old)
        with bd.if_then(has_grown):
            fade = exponential(bd, bd.fsub(splat(bd, old), shift))
            store(bd, bd.fmul(load(bd, lanes, VF32, 4), fade), lanes)

            def fade_out(n: Any, _: Any) -> list[Any]:
                place = offset(bd, target, bd.mul(n, I64(LANES * 4)))
                store(bd, bd.fmul(load(bd, place, VF32, 4), fade), place)
                return []

            count_up(bd, vectors, [], fade_out)
            store(bd, new, memory)
        store(bd, bd.fadd(load(bd, lanes, VF32, 4), total), lanes)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


@intrinsic
def sum_of_lanes(_: Any, address: Any) -> Any:
    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        return fold(bd, load(bd, pointer(bd, args[0]), VF32, 4), bd.fadd)

    return types.float32(types.int64), codegen
