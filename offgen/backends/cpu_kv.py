"""The KV cache on a CPU: its layout, and the kernel that fills it. Knows slots; knows neither rows nor attention.

keys    [num_blocks, G, B / KEYS, D, KEYS]   one vector holds the same value of 16 neighbouring tokens: a query meets
                                             16 keys at once, without a horizontal sum
        [num_blocks, G, B, D]                if B is not a multiple of KEYS
values  [num_blocks, G, B, D']               D' is D rounded up to KEYS
scales  [2, num_blocks, G, B] float32        with int8: one per token and head, keys first
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from offgen.backends.cpu_int8 import absmax_scale
from offgen.backends.cpu_rows import KERNEL, norm_row
from offgen.backends.cpu_simd import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    ITEMSIZE,
    bits_of_float32,
    fetch_add,
    float32_at,
    float_of,
    half_bits,
    int8_at,
    int32_at,
    prefetch_to_write,
    uint16_at,
)
from offgen.backends.cpu_tiles import KEYS

TORCH_TYPES = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16, FLOAT16: torch.float16, INT8: torch.int8}
TOKENS = 4  # tokens a worker takes at a time; of many, whole tiles: two workers on one line of keys hinder each other
MANY = 8 * KEYS


@dataclass(frozen=True, slots=True)
class CpuKVCache:
    """One layer's storage. Memory that was never written is never read."""

    kind: int
    block_size: int
    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor  # empty unless int8

    def addresses(self) -> tuple[int, int, int, int]:
        """keys, values, key scales, value scales."""
        scales = self.scales.data_ptr()
        return self.keys.data_ptr(), self.values.data_ptr(), scales, scales + self.scales.numel() // 2 * 4


def allocate(kind: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> CpuKVCache:
    """Reserve a layer's cache; the system commits a page when it is first written."""
    tokens, dtype = num_blocks * num_kv_heads * block_size, TORCH_TYPES[kind]
    return CpuKVCache(
        kind,
        block_size,
        torch.empty(tokens * head_dim, dtype=dtype),
        torch.empty(tokens * padded_dim(head_dim), dtype=dtype),
        torch.empty(2 * tokens if kind == INT8 else 0),
    )


def padded_dim(head_dim: int) -> int:
    return -(-head_dim // KEYS) * KEYS


def bytes_per_block(kind: int, block_size: int, num_kv_heads: int, head_dim: int) -> int:
    per_token = (head_dim + padded_dim(head_dim)) * TORCH_TYPES[kind].itemsize + (8 if kind == INT8 else 0)
    return block_size * num_kv_heads * per_token


@njit(fastmath={"contract", "nsz"})
def rotate(x, out, cos, sin, half, count):  # type: ignore[no-untyped-def]
    """The first `half` values pair with the next `half`; the rest is copied."""
    for i in range(half):
        out[i] = x[i] * cos[i] - x[half + i] * sin[i]
    for i in range(half):
        out[half + i] = x[half + i] * cos[i] + x[i] * sin[i]
    for i in range(2 * half, count):
        out[i] = x[i]


@njit
def bfloat16_bits(x):  # type: ignore[no-untyped-def]
    """Round to nearest even; NaN stays NaN."""
    bits = bits_of_float32(x)
    if bits & types.int32(0x7FFFFFFF) > types.int32(0x7F800000):
        return types.uint16(0x7FC0)
    lowest = (bits >> types.int32(16)) & types.int32(1)
    return types.uint16((bits + types.int32(0x7FFF) + lowest) >> types.int32(16))


@njit(error_model="numpy")
def store_head(x, base, first, step, scale_base, scale_at, count, kind):  # type: ignore[no-untyped-def]
    """Store one head of one token: element i at base[first + i * step], in the cache's type."""
    if kind == FLOAT32:
        wide = float32_at(base + first * 4)
        for i in range(count):
            wide[i * step] = x[i]
    elif kind == BFLOAT16:
        half = uint16_at(base + first * 2)
        for i in range(count):
            half[i * step] = bfloat16_bits(x[i])
    elif kind == FLOAT16:
        half = uint16_at(base + first * 2)
        for i in range(count):
            half[i * step] = half_bits(x[i])
    else:
        scale = absmax_scale(x, count)
        float32_at(scale_base)[scale_at] = scale
        divisor = scale if scale > types.float32(0.0) else types.float32(1.0)
        small = int8_at(base + first)
        for i in range(count):
            small[i * step] = types.int8(types.int32(np.rint(x[i] / divisor)))


@njit
def ask_for_slot(slot, groups, block_size, run, dim, value_dim, item, keys, values):  # type: ignore[no-untyped-def]
    """Ask for the lines that a token is about to be written to: in a tile of keys, one for each value of a head."""
    block, place = slot // block_size, slot % block_size
    for g in range(groups):
        head_at = (block * groups + g) * block_size
        tile = keys + (head_at + place // run * run) * dim * item
        for line in range(0, run * dim * item, 64):
            prefetch_to_write(tile + line)
        row = values + (head_at + place) * value_dim * item
        for line in range(0, value_dim * item, 64):
            prefetch_to_write(row + line)


@cache
def write_kernel(kind: int) -> Any:
    """Split, norm, rotate and store. Arguments (addresses; 0 where there is nothing):

    T, H, G, D, qkv, bytes of a qkv row, cos_sin, its width, positions, slots, q_norm, k_norm, eps, q out,
    keys, values, key scales, value scales, block size. With H = 0 the row is k and v alone.
    """

    @cfunc(KERNEL, cache=True)
    def kernel(memory):  # type: ignore[no-untyped-def]
        args = carray(memory, 21)
        num_tokens, heads, groups, dim, block_size = args[2], args[3], args[4], args[5], args[20]
        half, eps = args[9] // 2, float_of(args[14])
        positions, slots = int32_at(args[10]), int32_at(args[11])
        q_norm, k_norm = float32_at(args[12]), float32_at(args[13])
        run, item = KEYS if block_size % KEYS == 0 else 1, ITEMSIZE[kind]
        value_dim = (dim + KEYS - 1) // KEYS * KEYS
        normed, turned = np.empty(dim, np.float32), np.empty(dim, np.float32)
        normed_at, turned_at = float32_at(normed.ctypes.data), float32_at(turned.ctypes.data)
        taken, asked = KEYS if num_tokens >= MANY else TOKENS, np.int64(-1)
        while True:
            first = fetch_add(args.ctypes.data, taken)
            if first >= num_tokens:
                break
            last = min(num_tokens, first + taken)
            for token in range(first, last):
                for ahead in range(token if token == first else token + 1, min(last, token + 2)):
                    if slots[ahead] >= 0 and slots[ahead] // KEYS != asked:
                        asked = np.int64(slots[ahead]) // KEYS
                        ask_for_slot(slots[ahead], groups, block_size, run, dim, value_dim, item, args[16], args[17])
                cos = float32_at(args[8] + positions[token] * args[9] * 4)
                sin = float32_at(args[8] + (positions[token] * args[9] + half) * 4)
                row = args[6] + token * args[7]
                for head in range(heads):
                    x = float32_at(row + head * dim * 4)
                    if args[12] != 0:
                        norm_row(x, q_norm, normed_at, dim, eps)
                        x = normed_at
                    rotate(x, float32_at(args[15] + (token * heads + head) * dim * 4), cos, sin, half, dim)
                slot = np.int64(slots[token])
                if slot < 0:
                    continue
                block, place = slot // block_size, slot % block_size
                for g in range(groups):
                    x = float32_at(row + (heads + g) * dim * 4)
                    if args[13] != 0:
                        norm_row(x, k_norm, normed_at, dim, eps)
                        x = normed_at
                    rotate(x, turned_at, cos, sin, half, dim)
                    head_at = (block * groups + g) * block_size
                    key = (head_at + place // run * run) * dim + place % run
                    store_head(turned_at, args[16], key, run, args[18], head_at + place, dim, kind)
                    v = float32_at(row + (heads + groups + g) * dim * 4)
                    value = (head_at + place) * value_dim
                    store_head(v, args[17], value, 1, args[19], head_at + place, dim, kind)

    return kernel
