"""The GPU backend against the plain-torch one, op by op and as a whole engine; under the interpreter without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from offgen.backends.base import AttentionInputs, AttentionSpec
from offgen.backends.cuda import CudaBackend
from offgen.backends.torch_ops import TorchBackend
from offgen.errors import UsageError

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
WINDOWED = AttentionSpec(num_heads=3, num_kv_heads=1, head_dim=12, scale=0.3, sliding_window=9, logit_soft_cap=5.0)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def open_cuda(**changes):
    options = {"dtype": torch.float32, "quantization": "none", "kv_cache_dtype": "auto", "batch_invariant": False}
    return CudaBackend(DEVICE, **options | changes)


def open_torch():
    return TorchBackend(DEVICE, dtype=torch.float32, quantization="none", kv_cache_dtype="auto")


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def mixed_step(starts, lengths, num_decodes, block_size=4):
    """Rows with `starts` tokens in the cache and `lengths` new ones; block ids counted down from the pool's end."""
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    width = -(-max(ends) // block_size)
    tables = [[r * width + b for b in range(width)] for r in reversed(range(len(starts)))]
    positions = [p for start, end in zip(starts, ends, strict=True) for p in range(start, end)]
    rows = [r for r, length in enumerate(lengths) for _ in range(length)]
    slots = [tables[r][p // block_size] * block_size + p % block_size for r, p in zip(rows, positions, strict=True)]
    inputs = AttentionInputs(
        slots=ints(slots),
        positions=ints(positions),
        block_tables=ints(tables),
        seq_lens=ints(ends),
        cu_seqlens_q=ints([0, *torch.tensor(lengths).cumsum(0).tolist()]),
        num_decodes=num_decodes,
        max_seq_len=max(ends),
        block_size=block_size,
        total_seq_len=sum(ends),
    )
    return inputs, width * len(starts)


def attend(backend, spec, seed=0):
    """A first step that fills the cache, then a mixed one: chunks and decodes. Returns the outputs of both."""
    outputs, cos_sin = [], randn(64, spec.head_dim, seed=9)
    filled, num_blocks = mixed_step([0, 0, 0, 0], [7, 20, 31, 11], 0)
    mixed, more = mixed_step([7, 20, 31, 11], [5, 12, 1, 1], 2)
    (cache,) = backend.allocate_kv(1, max(num_blocks, more), 4, [spec])
    tables = mixed.block_tables[:, : filled.block_tables.shape[1]]
    for step, inputs in enumerate((mixed, mixed)):
        if step == 0:  # the same rows from the start, in the same blocks
            inputs = AttentionInputs(
                slots=_slots(mixed, [7, 20, 31, 11]),
                positions=filled.positions,
                block_tables=tables,
                seq_lens=filled.seq_lens,
                cu_seqlens_q=filled.cu_seqlens_q,
                num_decodes=0,
                max_seq_len=31,
                block_size=4,
            )
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        qkv = randn(inputs.positions.shape[0], width, seed=seed + step)
        q = backend.rope_and_write_kv(qkv, cos_sin, cache, inputs, spec)
        outputs.append(backend.paged_attention(q, cache, inputs, spec))
    return outputs


def _slots(inputs, lengths):
    tables = inputs.block_tables.tolist()
    return ints([tables[r][p // 4] * 4 + p % 4 for r, n in enumerate(lengths) for p in range(n)])


@pytest.mark.parametrize("spec", [SPEC, WINDOWED], ids=["plain", "windowed"])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_mixed_steps_attend_as_torch_does(spec, batch_invariant):
    ours, theirs = attend(open_cuda(batch_invariant=batch_invariant), spec), attend(open_torch(), spec)
    for out, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_long_rows_are_planned_once_a_step():
    backend, spec = open_cuda(), AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25)
    inputs, num_blocks = mixed_step([700, 3], [1, 1], 2, block_size=16)
    (cache,) = backend.allocate_kv(1, num_blocks, 16, [spec])
    cache.k.normal_()
    cache.v.normal_()
    q = randn(2, 2, 16)
    planned = backend.paged_attention(q, cache, inputs, spec)
    assert backend._plan_of(inputs) is backend._plan_of(inputs)
    assert torch.equal(planned, backend.paged_attention(q, cache, replace(inputs, total_seq_len=None), spec))


def test_a_download_is_read_when_it_has_arrived():
    assert open_cuda().download(ints([3, 1, 2])).read().tolist() == [3, 1, 2]


def test_fp8_keys_and_values_stay_near():
    for out, expected in zip(attend(open_cuda(kv_cache_dtype="fp8"), SPEC), attend(open_torch(), SPEC), strict=True):
        assert (out - expected).norm() < 0.06 * expected.norm()


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_linear(batch_invariant):
    weight, bias, x = randn(24, 16), randn(24, seed=1), randn(5, 16, seed=2)
    linear = open_cuda(batch_invariant=batch_invariant).linear(weight, bias)
    torch.testing.assert_close(linear(x), x @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert (linear.in_features, linear.out_features) == (16, 24)


def test_fp8_linear_stays_near_and_odd_shapes_are_left_alone():
    x = randn(5, 64)
    for num_outputs, tolerance in ((48, 0.05), (13, 1e-5)):
        weight, bias = randn(num_outputs, 64, seed=1), randn(num_outputs, seed=2)
        out, expected = open_cuda(quantization="fp8").linear(weight, bias)(x), x @ weight.T + bias
        assert (out - expected).norm() < tolerance * expected.norm()
    assert open_cuda(quantization="fp8").linear(randn(48, 64))(torch.zeros(2, 64, device=DEVICE)).abs().max() == 0


def test_a_block_takes_the_bytes_it_is_said_to_take():
    for kv_cache_dtype in ("auto", "fp8"):
        backend = open_cuda(kv_cache_dtype=kv_cache_dtype)
        caches = backend.allocate_kv(2, 10, 16, [SPEC, WINDOWED])
        tensors = [t for c in caches for t in (c.k, c.v, c.k_scales, c.v_scales) if t is not None]
        assert backend.kv_bytes_per_block(16, [SPEC, WINDOWED]) * 10 == sum(t.numel() * t.itemsize for t in tensors)


@pytest.mark.parametrize(
    "change", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}, {"quantization": "fp8", "batch_invariant": True}]
)
def test_what_the_kernels_cannot_do_is_refused(change):
    with pytest.raises(UsageError, match="not available"):
        open_cuda(**change)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the interpreter's limit")
def test_bfloat16_is_refused_under_the_interpreter():
    with pytest.raises(UsageError, match="bfloat16"):
        open_cuda(dtype=torch.bfloat16)
