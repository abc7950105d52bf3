"""Paged attention and the KV cache on the CPU, against plain torch at odd shapes, and against itself bit for bit."""

from __future__ import annotations

import pytest
import torch
from offgen_kernels import reference

from offgen.backends import AttentionSpec

HEADS = [(9, 3, 64), (4, 1, 12), (4, 4, 80), (8, 2, 96), (14, 2, 128), (5, 1, 256)]


def spec_of(heads, **options):
    num_heads, num_kv_heads, dim = heads
    return AttentionSpec(num_heads, num_kv_heads, dim, dim**-0.5, **options)


def attend(backend, scene, spec, queries, *, num_decodes=0, sinks=None, rows=None, seed=2):
    """Queries are a function of row and position, so that any batch of them can be compared."""
    inputs = scene.step(queries, num_decodes=num_decodes, rows=rows)
    chosen = range(len(scene.seq_lens)) if rows is None else rows
    parts = []
    for row, count in zip(chosen, queries, strict=True):
        generator = torch.Generator().manual_seed(seed * 1000 + row)
        whole = torch.randn(scene.seq_lens[row], spec.num_heads, spec.head_dim, generator=generator)
        parts.append(whole[scene.seq_lens[row] - count :])
    cache = scene.fill(backend, spec)
    return backend.paged_attention(torch.cat(parts), cache, inputs, spec, sinks)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_mixed_batch_equals_reference(cpu, oracle, make_scene, heads, block_size):
    scene = make_scene([63, 1, 100, 200, 17], block_size)
    spec = spec_of(heads)
    ours = attend(cpu, scene, spec, [63, 1, 31, 1, 1], num_decodes=2)
    torch.testing.assert_close(
        ours, attend(oracle, scene, spec, [63, 1, 31, 1, 1], num_decodes=2), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("window", [1, 4, 16, 100])
@pytest.mark.parametrize("block_size", [1, 16])
def test_windows_soft_caps_and_sinks_equal_reference(cpu, oracle, make_scene, window, block_size):
    scene = make_scene([63, 100, 200], block_size)
    spec = spec_of((4, 2, 24), sliding_window=window, logit_soft_cap=2.0)
    sinks = torch.randn(4)
    ours = attend(cpu, scene, spec, [63, 40, 1], num_decodes=1, sinks=sinks)
    theirs = attend(oracle, scene, spec, [63, 40, 1], num_decodes=1, sinks=sinks)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_window_counts_exactly_its_keys(cpu, make_scene):
    """With equal logits the output is the mean of the values seen: the window's keys, itself included."""
    scene = make_scene([100])
    spec = spec_of((1, 1, 16), sliding_window=7)
    cache = scene.fill(cpu, spec)
    inputs = scene.step([100])
    values = torch.arange(100.0).view(100, 1, 1).expand(100, 1, 16).contiguous()
    cpu.write_kv(torch.zeros(100, 1, 16), values, cache, inputs)
    out = cpu.paged_attention(torch.randn(100, 1, 16), cache, inputs, spec)[:, 0, 0]
    expected = torch.stack([torch.arange(max(0, p - 6), p + 1).float().mean() for p in range(100)])
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(("kv", "bound"), [("bf16", 4e-3), ("int8", 2e-2)])
@pytest.mark.parametrize("block_size", [3, 16])
def test_narrow_caches_equal_the_same_rounding_in_torch(backend_of, make_scene, kv, bound, block_size):
    scene = make_scene([63, 100, 200], block_size)
    for heads in HEADS[:3]:
        spec = spec_of(heads)
        ours = attend(backend_of("cpu", kv_cache_dtype=kv), scene, spec, [63, 40, 1], num_decodes=1)
        theirs = attend(backend_of("torch", kv_cache_dtype=kv), scene, spec, [63, 40, 1], num_decodes=1)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        exact = attend(backend_of("torch"), scene, spec, [63, 40, 1], num_decodes=1)
        assert (ours - exact).norm() < bound * exact.norm()


@pytest.mark.parametrize("kv", ["auto", "bf16", "int8"])
@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_bits_do_not_depend_on_chunks_or_neighbours(backend_of, make_scene, kv, block_size):
    scene = make_scene([150, 70, 33, 1], block_size)
    backend = backend_of("cpu", kv_cache_dtype=kv)
    for options in ({}, {"sliding_window": 20}):
        spec = spec_of((9, 3, 64), **options)
        whole = attend(backend, scene, spec, [150, 70, 33, 1]).split([150, 70, 33, 1])
        for queries in ([1, 1, 1, 1], [7, 16, 2, 1], [49, 48, 17, 1]):
            several = attend(backend, scene, spec, queries).split(queries)
            for all_of, last in zip(whole, several, strict=True):
                assert torch.equal(all_of[len(all_of) - len(last) :], last)
        decodes = attend(backend, scene, spec, [1, 1, 1], num_decodes=3, rows=[2, 0, 1])
        for out, row in zip(decodes, [2, 0, 1], strict=True):
            assert torch.equal(out, whole[row][-1])
            alone = attend(backend, scene, spec, [1], num_decodes=1, rows=[row])
            assert torch.equal(alone[0], whole[row][-1])


@pytest.mark.parametrize("shared", [16, 64, 208])
def test_bits_do_not_depend_on_reading_a_prefix_together(cpu, make_scene, shared):
    lengths = [260, 212, 290, 70, *range(213, 240)]
    scene = make_scene(lengths, shared=shared)
    spec = spec_of((9, 3, 64))
    together = attend(cpu, scene, spec, [1] * len(lengths), num_decodes=len(lengths))
    for row in range(len(lengths)):
        assert torch.equal(together[row], attend(cpu, scene, spec, [1], num_decodes=1, rows=[row])[0])


def test_padding_is_neither_written_nor_read(cpu, make_scene):
    scene = make_scene([20])
    spec = spec_of((2, 1, 16))
    cache = scene.fill(cpu, spec)
    before = (cache.keys.clone(), cache.values.clone())
    inputs = scene.step([20])
    inputs.slots.fill_(-1)
    cpu.write_kv(torch.randn(20, 1, 16), torch.randn(20, 1, 16), cache, inputs)
    assert all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(before, (cache.keys, cache.values), strict=True)
    )
    q = torch.randn(24, 2, 16)
    out = cpu.paged_attention(q, cache, inputs, spec)
    assert torch.equal(out[20:], torch.zeros(4, 2, 16)) and torch.isfinite(out).all()


@pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (12, 12), (80, 32), (96, 0), (128, 128)])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rope_and_write_equal_reference(cpu, oracle, make_scene, dim, rotary, is_normed):
    scene = make_scene([37, 5])
    spec = spec_of((6, 2, dim))
    inputs = scene.step([37, 5])
    qkv = torch.randn(42, 10 * dim)
    angles = torch.rand(64, rotary // 2) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    norms = (torch.rand(dim), torch.rand(dim)) if is_normed else (None, None)
    results = []
    for backend in (cpu, oracle):
        cache = scene.fill(backend, spec)
        q = backend.rope_and_write_kv(qkv, cos_sin, cache, inputs, spec, *norms)
        results += [q, backend.paged_attention(q, cache, inputs, spec)]
    torch.testing.assert_close(results[0], results[2], atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(results[1], results[3], atol=2e-5, rtol=2e-5)
    one = scene.step([1], rows=[1])
    alone = cpu.rope_and_write_kv(qkv[-1:], cos_sin, scene.fill(cpu, spec), one, spec, *norms)
    assert torch.equal(alone[0], results[0][-1])


def test_extreme_logits_do_not_overflow(cpu, make_scene):
    scene = make_scene([40])
    spec = AttentionSpec(1, 1, 16, 1000.0)
    cache = scene.fill(cpu, spec)
    q = torch.randn(1, 1, 16) * 100
    out = cpu.paged_attention(q, cache, scene.step([1], num_decodes=1), spec)
    assert torch.isfinite(out).all()


def test_a_row_of_nans_stays_alone(cpu, make_scene):
    scene = make_scene([40, 40])
    spec = spec_of((2, 1, 16))
    q = torch.randn(2, 2, 16)
    cache = scene.fill(cpu, spec)
    inputs = scene.step([1, 1], num_decodes=2)
    clean = cpu.paged_attention(q, cache, inputs, spec)
    q[0] = float("nan")
    out = cpu.paged_attention(q, cache, inputs, spec)
    assert out[0].isnan().all() and torch.equal(out[1], clean[1])


def test_cache_memory_is_what_a_block_says(backend_of):
    spec = [spec_of((9, 3, 64)), spec_of((4, 1, 12))]
    for kv in ("auto", "bf16", "int8"):
        backend = backend_of("cpu", kv_cache_dtype=kv)
        caches = backend.allocate_kv(2, 10, 16, spec)
        total = sum(t.numel() * t.element_size() for c in caches for t in (c.keys, c.values, c.scales))
        assert total == 10 * backend.kv_bytes_per_block(16, spec)


def test_reference_matches_torch_sdpa():
    q, k, v = torch.randn(5, 4, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    ours = reference.attention(q, k, v, scale=0.25)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (q, k, v)), is_causal=True, scale=0.25, enable_gqa=True
    )
    torch.testing.assert_close(ours, theirs.transpose(0, 1))
