"""Finds the tiles of a span of keys in the paged cache. Knows block tables and addresses; reads no key."""

from __future__ import annotations

import numpy as np
from numba import njit

from offgen.backends.cpu_attention_tiles import SPAN, SPAN_TILES
from offgen.backends.cpu_simd import int8_at, int32_at, prefetch, uint16_at
from offgen.backends.cpu_tiles import KEYS


@njit
def copy_strided(source, target, count, step, size):  # type: ignore[no-untyped-def]
    """target[i * step] = source[i], elements of 1, 2 or 4 bytes at addresses."""
    if size == 4:
        for i in range(count):
            int32_at(target)[i * step] = int32_at(source)[i]
    elif size == 2:
        for i in range(count):
            uint16_at(target)[i * step] = uint16_at(source)[i]
    else:
        for i in range(count):
            int8_at(target)[i * step] = int8_at(source)[i]


@njit
def find_tiles(table, first, last, groups, g, block_size, dim, value_dim, size, keys, values, tiles, room):  # type: ignore[no-untyped-def]
    """Addresses of the key and value tiles of keys [first, last), first on a tile's edge.

    They are read in place; blocks that hold no whole tile are copied together at `room`.
    """
    is_whole = block_size % KEYS == 0
    for t in range((last - first + KEYS - 1) // KEYS):
        key = first + t * KEYS
        at = (np.int64(table[key // block_size]) * groups + g) * block_size + key % block_size
        tiles[t] = keys + at * dim * size if is_whole else room + t * KEYS * dim * size
        tiles[SPAN_TILES + t] = (
            values + at * value_dim * size if is_whole else room + (SPAN * dim + t * KEYS * value_dim) * size
        )
    if is_whole:
        return
    for key in range(first, last):
        at = (np.int64(table[key // block_size]) * groups + g) * block_size + key % block_size
        t, lane = (key - first) // KEYS, (key - first) % KEYS
        copy_strided(keys + at * dim * size, tiles[t] + lane * size, dim, KEYS, size)
        v = tiles[SPAN_TILES + t] + lane * value_dim * size
        copy_strided(values + at * value_dim * size, v, value_dim, 1, size)


@njit
def repeat_tiles(tiles, first, last):  # type: ignore[no-untyped-def]
    """Point the tiles of a span that hold no key at one that does: their scores are hidden."""
    for t in range(SPAN_TILES):
        if t < first or t >= last:
            tiles[t] = tiles[first]


@njit
def prefetch_tiles(table, first, last, groups, g, block_size, row_bytes, base):  # type: ignore[no-untyped-def]
    """Ask for the first lines of tiles ahead of their use: scattered blocks start where the hardware cannot guess."""
    if block_size % KEYS != 0:
        return
    for t in range((last - first + KEYS - 1) // KEYS):
        key = first + t * KEYS
        at = base + ((np.int64(table[key // block_size]) * groups + g) * block_size + key % block_size) * row_bytes
        prefetch(at)
        prefetch(at + 64)


@njit
def gather_scales(table, first, last, groups, g, block_size, scales, out):  # type: ignore[no-untyped-def]
    key = first
    while key < last:  # block by block: divisions cost more than what they find
        place = key % block_size
        at = (np.int64(table[key // block_size]) * groups + g) * block_size + place
        count = min(block_size - place, last - key)
        for i in range(count):
            out[key - first + i] = scales[at + i]
        key += count
