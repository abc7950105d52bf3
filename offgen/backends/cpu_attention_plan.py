"""Cuts a step's attention into work items of queries that read the same keys. Knows rows and lengths; computes nothing.

An item is a run of queries: a tile of one row's chunk, decode rows whose first block ids coincide (a shared prefix is
read once for all of them), or one decode row. Each query's arithmetic is the same in any item: spans of keys in order.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from offgen.backends.cpu_attention_tiles import SPAN
from offgen.backends.cpu_rows import KERNEL
from offgen.backends.cpu_simd import int32_at, int64_at

ITEM_ROWS = 48  # query rows (queries x heads of a KV head) of an item: scores and sums stay in the first-level cache


@njit
def shared_keys(tables, stride, block_size, row, other, most):  # type: ignore[no-untyped-def]
    """Keys in whole spans that two rows read from the same blocks, at most `most`."""
    blocks = 0
    limit = most // block_size
    while blocks < limit and tables[row * stride + blocks] == tables[other * stride + blocks]:
        blocks += 1
    return blocks * block_size // SPAN * SPAN


@njit
def group_decodes(num_rows, first_row, tables, stride, seq_lens, block_size, most, group_of, shared):  # type: ignore[no-untyped-def]
    """Gather decode rows with a common prefix: group_of[i] is the first row's number, shared[that] their common keys.

    A row joins if that keeps at least half of what the group shares already.
    """
    sizes = np.zeros(num_rows, np.int64)
    for i in range(num_rows):
        group_of[i] = -1
    for i in range(num_rows):
        if group_of[i] >= 0:
            continue
        group_of[i], shared[i], sizes[i] = i, 0, 1
        row = first_row + i
        for j in range(i + 1, num_rows):
            other = first_row + j
            if group_of[j] >= 0 or sizes[i] == most or tables[row * stride] != tables[other * stride]:
                continue
            keys = min(seq_lens[row], seq_lens[other])
            if sizes[i] > 1:
                keys = min(keys, shared[i])
            keys = shared_keys(tables, stride, block_size, row, other, keys)
            if keys > 0 and keys * 2 >= shared[i]:
                group_of[j], shared[i] = i, keys
                sizes[i] += 1


@njit
def sort_by(costs, order, count):  # type: ignore[no-untyped-def]
    """Shell sort: the longest item first, or the last one is waited for. (np.argsort takes seconds to compile.)"""
    gap = 701
    while gap > 0:
        for i in range(gap, count):
            moved, j = order[i], i
            while j >= gap and costs[order[j - gap]] > costs[moved]:
                order[j] = order[j - gap]
                j -= gap
            order[j] = moved
        gap = gap * 10 // 23


@njit
def plan_chunks(num_rows, starts, seq_lens, tile, tokens, rows, positions, items, costs):  # type: ignore[no-untyped-def]
    """Items of the first num_rows rows. Returns how many, and how many queries they hold."""
    count, queries = 0, 0
    for row in range(num_rows):
        past = seq_lens[row] - (starts[row + 1] - starts[row])
        for first in range(starts[row], starts[row + 1], tile):
            last = min(first + tile, starts[row + 1])
            end = past + last - starts[row]
            items[3 * count], items[3 * count + 1], items[3 * count + 2] = queries, last - first, end
            costs[count] = -np.float64(end) * (last - first)
            count += 1
            for token in range(first, last):
                tokens[queries], rows[queries], positions[queries] = token, row, past + token - starts[row]
                queries += 1
    return count, queries


@cfunc(KERNEL, cache=True)
def plan_kernel(memory):  # type: ignore[no-untyped-def]
    """Arguments: R, num_decodes, starts, seq_lens, tables, table stride, block size, heads per KV head, may share, T,

    query tokens [T], their rows [T] and positions [T], items [T, 3] (first query, count, shared keys), order [T],
    number of items [1].
    """
    args = carray(memory, 18)
    num_rows, num_decodes, starts, seq_lens = args[2], args[3], int32_at(args[4]), int32_at(args[5])
    tables, stride, block_size = int32_at(args[6]), args[7], args[8]
    tokens, rows, positions, items = int32_at(args[12]), int32_at(args[13]), int32_at(args[14]), int64_at(args[15])
    most = max(1, ITEM_ROWS // args[9])
    costs = np.empty(args[11], np.float64)
    num_chunks = num_rows - num_decodes
    count, queries = plan_chunks(num_chunks, starts, seq_lens, most, tokens, rows, positions, items, costs)
    group_of, shared = np.empty(num_decodes, np.int64), np.zeros(num_decodes, np.int64)
    if args[10] != 0:
        group_decodes(num_decodes, num_chunks, tables, stride, seq_lens, block_size, most, group_of, shared)
    else:
        for i in range(num_decodes):
            group_of[i] = i
    for i in range(num_decodes):
        if group_of[i] != i:
            continue
        first, cost = queries, np.float64(shared[i])
        for j in range(i, num_decodes):
            if group_of[j] == i:
                row = num_chunks + j
                tokens[queries], rows[queries], positions[queries] = starts[row], row, seq_lens[row] - 1
                queries += 1
                cost += seq_lens[row] - shared[i]
        items[3 * count], items[3 * count + 1], items[3 * count + 2] = first, queries - first, shared[i]
        costs[count] = -cost
        count += 1
    order = int64_at(args[16])
    for i in range(count):
        order[i] = i
    sort_by(costs, order, count)
    int64_at(args[17])[0] = count
