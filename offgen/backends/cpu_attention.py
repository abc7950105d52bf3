"""Attention over the paged cache, read in place. Knows items of queries (cpu_attention_plan) and the layout (cpu_kv).

Softmax is online over spans of SPAN keys counted from position 0, so a query's sums run in an order that its own
position fixes: chunked or not, alone or in a batch, with a shared prefix or without, its bits are the same.
Reads each span of a KV head once for all query heads and queries of an item.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types

from offgen.backends.cpu_attention_pages import find_tiles, gather_scales, prefetch_tiles, repeat_tiles
from offgen.backends.cpu_attention_tiles import (
    COLUMNS,
    SPAN,
    SPAN_TILES,
    score_tile,
    softmax_span,
    sum_of_lanes,
    value_tile,
)
from offgen.backends.cpu_rows import KERNEL
from offgen.backends.cpu_simd import (
    HAS_MANY_REGISTERS,
    INT8,
    ITEMSIZE,
    LANES,
    exp_float32,
    fetch_add,
    float32_at,
    float_of,
    int32_at,
    int64_at,
)
from offgen.backends.cpu_tiles import KEYS

NO_WINDOW = 1 << 40


@njit(inline="always")
def score_rows(kind, num_rows, q, tiles, scores, dim):  # type: ignore[no-untyped-def]
    row = 0
    while row < num_rows:
        left, a, c = num_rows - row, q + row * dim * 4, scores + row * SPAN * 4
        if HAS_MANY_REGISTERS and left >= 6:
            score_tile(6, kind, a, dim * 4, tiles, c, dim)
            row += 6
        elif HAS_MANY_REGISTERS and left >= 4:
            score_tile(4, kind, a, dim * 4, tiles, c, dim)
            row += 4
        elif left >= 3:
            score_tile(3, kind, a, dim * 4, tiles, c, dim)
            row += 3
        elif left >= 2:
            score_tile(2, kind, a, dim * 4, tiles, c, dim)
            row += 2
        else:
            score_tile(1, kind, a, dim * 4, tiles, c, dim)
            row += 1


@njit(inline="always")
def value_rows(kind, vectors, num_rows, weights, tiles, skip, step, num_keys, out, ldo):  # type: ignore[no-untyped-def]
    row = 0
    while row < num_rows:
        left, a, c = num_rows - row, weights + row * SPAN * 4, out + row * ldo
        if HAS_MANY_REGISTERS and left >= 6:
            value_tile(6, kind, vectors, a, tiles, skip, step, num_keys, c, ldo)
            row += 6
        elif HAS_MANY_REGISTERS and left >= 4:
            value_tile(4, kind, vectors, a, tiles, skip, step, num_keys, c, ldo)
            row += 4
        elif left >= 3:
            value_tile(3, kind, vectors, a, tiles, skip, step, num_keys, c, ldo)
            row += 3
        elif left >= 2:
            value_tile(2, kind, vectors, a, tiles, skip, step, num_keys, c, ldo)
            row += 2
        else:
            value_tile(1, kind, vectors, a, tiles, skip, step, num_keys, c, ldo)
            row += 1


@njit
def scale_rows(rows, num_rows, scales, count):  # type: ignore[no-untyped-def]
    for row in range(num_rows):
        for i in range(count):
            rows[row * SPAN + i] *= scales[i]


@njit(fastmath={"contract", "nsz"}, error_model="numpy")
def cap_scores(rows, count, cap):  # type: ignore[no-untyped-def]
    """cap * tanh(score / cap), as 1 - 2 / (exp(2 x) + 1)."""
    f = types.float32
    for i in range(count):
        x = rows[i] / cap
        rows[i] = cap * (f(1.0) - f(2.0) / (exp_float32(x + x) + f(1.0)))


@njit
def take_queries(q, tokens, count, heads, per_group, g, dim, scale, sinks, has_sinks, out, state, sums, width):  # type: ignore[no-untyped-def]
    """Scaled queries side by side, and the softmax state before the first key."""
    for i in range(count):
        for h in range(per_group):
            row, head = i * per_group + h, g * per_group + h
            source = (np.int64(tokens[i]) * heads + head) * dim
            for d in range(dim):
                out[row * dim + d] = q[source + d] * scale
            for lane in range(2 * LANES):
                state[row * 2 * LANES + lane] = 0.0
            state[row * 2 * LANES] = sinks[head] if has_sinks else -np.inf
            state[row * 2 * LANES + LANES] = 1.0 if has_sinks else 0.0
            for d in range(width):
                sums[row * width + d] = 0.0


@njit(error_model="numpy")
def give_out(out, tokens, count, heads, per_group, g, dim, state, sums, width):  # type: ignore[no-untyped-def]
    for i in range(count):
        for h in range(per_group):
            row = i * per_group + h
            weight = types.float32(1.0) / sum_of_lanes(state + (row * 2 + 1) * LANES * 4)
            target = (np.int64(tokens[i]) * heads + g * per_group + h) * dim
            for d in range(dim):
                out[target + d] = sums[row * width + d] * weight


def scratch_bytes(most: int, dim: int, width: int) -> int:
    """What one worker needs: queries, scores, sums, states, tile addresses, scales, and room for copied tiles."""
    return most * (dim + SPAN + width + 2 * LANES) * 4 + 2 * SPAN_TILES * 8 + SPAN * 4 + SPAN * (dim + width) * 4 + 256


@njit(inline="always")
def attend_span(  # type: ignore[no-untyped-def]
    kind, table, span, first, last, end, groups, g, block_size, dim, width, memory, positions, per_group, first_row,
    num_rows, window, cap, q, scores, state, sums, tiles, scales, room,
):  # fmt: skip
    """Take the keys [first, last) of one span into the sums of query rows first_row, ... of an item.

    memory: addresses of keys, values, key scales, value scales. The last seven: this worker's scratch.
    """
    size = ITEMSIZE[kind]
    skipped = first - span
    own = int64_at(tiles + skipped // KEYS * 8)
    following = min(span + 2 * SPAN, end)
    if following > span + SPAN:
        prefetch_tiles(table, span + SPAN, following, groups, g, block_size, dim * size, memory[0])
    find_tiles(table, first, last, groups, g, block_size, dim, width, size, memory[0], memory[1], own, room)
    repeat_tiles(int64_at(tiles), skipped // KEYS, (last - span + KEYS - 1) // KEYS)
    c = scores + first_row * SPAN * 4
    score_rows(kind, num_rows, q + first_row * dim * 4, tiles, c, dim)
    if kind == INT8:
        gather_scales(table, first, last, groups, g, block_size, float32_at(memory[2]), scales)
        scale_rows(float32_at(c + skipped * 4), num_rows, scales, last - first)
    if cap > 0.0:
        cap_scores(float32_at(c), num_rows * SPAN, cap)
    for row in range(first_row, first_row + num_rows):
        after = positions[row // per_group] + 1
        low, high = max(after - window, first) - span, min(after, last) - span
        own_state, own_sums = state + row * 2 * LANES * 4, sums + row * width * 4
        softmax_span(scores + row * SPAN * 4, low, high, own_state, own_sums, width // LANES)
    if following > span + SPAN:
        prefetch_tiles(table, span + SPAN, following, groups, g, block_size, width * size, memory[1])
    if kind == INT8:
        gather_scales(table, first, last, groups, g, block_size, float32_at(memory[3]), scales)
        scale_rows(float32_at(c + skipped * 4), num_rows, scales, last - first)
    weights, values = c + skipped * 4, tiles + (SPAN_TILES + skipped // KEYS) * 8
    column = 0
    while column < width:
        target, skip = sums + (first_row * width + column) * 4, column * size
        if width - column >= COLUMNS * LANES:
            value_rows(
                kind, COLUMNS, num_rows, weights, values, skip, width * size, last - first, target, width * 4
            )  # fmt: skip
            column += COLUMNS * LANES
        else:
            value_rows(kind, 1, num_rows, weights, values, skip, width * size, last - first, target, width * 4)
            column += LANES


@cache
def attention_kernel(kind: int) -> Any:
    """Arguments: number of items [1], order, items, query tokens, rows, positions, q, out, H, G, D, scale, window, cap,

    sinks, tables, table stride, block size, keys, values, key scales, value scales, most query rows of an item,
    scratch, bytes of it per worker.
    """

    @cfunc(KERNEL, cache=True)
    def kernel(memory):  # type: ignore[no-untyped-def]
        args = carray(memory, 27)
        items, heads, groups, dim = int64_at(args[4]), args[10], args[11], args[12]
        scale, window, cap = types.float32(float_of(args[13])), args[14], types.float32(float_of(args[15]))
        block_size, most = args[19], args[24]
        width, per_group, num_work = (dim + KEYS - 1) // KEYS * KEYS, heads // groups, int64_at(args[2])[0] * groups
        q = args[25] + fetch_add(args.ctypes.data + 8, 1) * args[26]  # this worker's part of the scratch memory
        scores = q + most * dim * 4
        sums = scores + most * SPAN * 4
        state = sums + most * width * 4
        tiles = state + most * 2 * LANES * 4
        scales, room = float32_at(tiles + 2 * SPAN_TILES * 8), tiles + 2 * SPAN_TILES * 8 + SPAN * 4
        while True:
            taken = fetch_add(args.ctypes.data, 1)
            if taken >= num_work:
                break
            item, g = int64_at(args[3])[taken // groups] * 3, taken % groups
            begin, count, shared = items[item] * 4, items[item + 1], items[item + 2]
            tokens, rows, positions = int32_at(args[5] + begin), int32_at(args[6] + begin), int32_at(args[7] + begin)
            take_queries(
                float32_at(args[8]), tokens, count, heads, per_group, g, dim, scale, float32_at(args[16]),
                args[16] != 0, float32_at(q), float32_at(state), float32_at(sums), width,
            )  # fmt: skip
            for part in range(count + 1):  # the keys that all queries share, then what each has for itself
                one, other = (0, count) if part == 0 else (part - 1, part)
                end = shared if part == 0 else positions[one] + 1
                nearest = max(np.int64(0), positions[one] + 1 - window)  # the first key that any of them sees
                start = nearest if part == 0 else max(shared, nearest)
                if start >= end:
                    continue
                table = int32_at(args[17] + rows[one] * args[18] * 4)
                for span in range(start // SPAN * SPAN, end, SPAN):
                    attend_span(
                        kind, table, span, max(span, start // KEYS * KEYS), min(span + SPAN, end), end, groups, g,
                        block_size, dim, width, args[20:24], positions, per_group, one * per_group,
                        (other - one) * per_group, window, cap, q, scores, state, sums, tiles, scales, room,
                    )  # fmt: skip
            give_out(float32_at(args[9]), tokens, count, heads, per_group, g, dim, state, float32_at(sums), width)

    return kernel
