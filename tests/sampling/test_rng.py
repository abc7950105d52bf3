"""Random numbers are a function of (seed, row, sample, position) and of nothing else."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from offgen.sampling.rng import stream_key, uniforms

MASK = (1 << 64) - 1
INT64 = st.integers(-(2**63), 2**63 - 1)


def splitmix64(state: int) -> int:
    """The published generator, in plain integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_the_oracle_is_splitmix64() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # first output of the reference code for seed 0


@given(key=INT64, position=st.integers(0, 2**31))
def test_tensor_arithmetic_gives_the_bits_of_plain_integers(key: int, position: int) -> None:
    expected = splitmix64((key + position * 0x9E3779B97F4A7C15) & MASK) >> 12
    found = uniforms(torch.tensor([key]), torch.tensor([position]))
    assert found.item() == expected * 2.0**-52
    assert 0.0 <= found.item() < 1.0


def test_every_part_of_the_key_changes_the_stream() -> None:
    keys = [stream_key(*parts) for parts in itertools.product((0, 1, 2, -1, 2**40), (0, 1, 2, 2**40), (0, 1, 2))]
    assert len(set(keys)) == len(keys)
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_neighbouring_rows_and_positions_look_independent() -> None:
    keys = torch.tensor([stream_key(7, row, 0) for row in range(200)])
    table = torch.stack([uniforms(keys, torch.full((200,), position)) for position in range(200)])
    assert abs(table.mean() - 0.5) < 0.005
    assert abs(table.var() - 1 / 12) < 0.002
    for shifted in (table.roll(1, 0), table.roll(1, 1)):
        assert abs(((table - 0.5) * (shifted - 0.5)).mean() * 12) < 0.02
    counts = torch.histc(table.float(), 50, 0, 1)
    assert ((counts - 800) ** 2 / 800).sum() < 100  # chi-square of 49 degrees: 99.99% are below 94
