"""Counter-based random numbers: a pure function of (seed, row id, sample index, position).

A row's numbers depend on nothing else: not on its seat, its neighbours, a preemption or a resume. The hash is
SplitMix64's finalizer, in integer arithmetic that wraps at 64 bits, so every device gives the same bits.
Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIFORM_BITS = 52  # then u * total < total in float64 for every total: an inverse CDF never runs off its end


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def stream_key(seed: int, row_id: int, sample_index: int) -> int:
    """The key of one sample's stream, as an int64."""
    key = 0
    for part in (seed, row_id, sample_index):
        key = _mix(key + _GOLDEN * ((part & _MASK) + 1))
    return _signed(key)


def uniforms(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One number per row, uniform in [0, 1), as float64.

    keys       [R]   int64, from `stream_key`
    positions  [R]   int64, how many tokens the sample has already
    """
    value = keys + (positions + 1) * _signed(_GOLDEN)
    value = (value ^ _shift(value, 30)) * _signed(_MIX_1)
    value = (value ^ _shift(value, 27)) * _signed(_MIX_2)
    value = value ^ _shift(value, 31)
    return _shift(value, 64 - _UNIFORM_BITS).to(torch.float64) * 2.0**-_UNIFORM_BITS


def _shift(value: torch.Tensor, bits: int) -> torch.Tensor:
    """A logical right shift: torch's own copies the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
