"""Attention kernels against reference.py: odd sizes, odd heads, NaN wherever nothing was written."""

from __future__ import annotations

import pytest
import torch
from offgen_kernels import reference
from offgen_kernels.attention_shapes import SPLIT
from offgen_kernels.decode_attention import decode_attention
from offgen_kernels.invariant_attention import invariant_attention
from offgen_kernels.prefill_attention import prefill_attention
from offgen_kernels.reference_fp8 import dequantize_rows, quantize_rows_fp8
from offgen_kernels.work_plan import num_work_items, plan_work

# query heads, KV heads, head_dim, block_size
SMALL = [(9, 3, 64, 16), (4, 1, 12, 1), (4, 4, 80, 48), (8, 4, 32, 16)]
MODELS = [
    pytest.param(16, 8, 128, 16, id="qwen3-0.6b"),
    pytest.param(32, 8, 128, 16, id="llama-3.1-8b"),
    pytest.param(4, 1, 256, 16, id="gemma3-1b"),
    pytest.param(32, 32, 96, 16, id="phi-96"),
    pytest.param(32, 32, 80, 16, id="phi-80"),
    pytest.param(71, 1, 64, 16, id="falcon-7b"),
    pytest.param(32, 1, 48, 7, id="mqa"),
]
MODES = [
    pytest.param({}, id="plain"),
    pytest.param({"window": 20}, id="window"),
    pytest.param({"soft_cap": 3.0}, id="cap"),
    pytest.param({"sinks": True}, id="sinks"),
    pytest.param({"window": 5, "soft_cap": 3.0, "sinks": True}, id="all"),
]
SAMPLE = [
    pytest.param(*shape, mode.values[0], id=f"{shape[0]}x{shape[2]}-{mode.id}")
    for shape, mode in zip(SMALL, MODES[1:], strict=True)
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


def options(mode, num_heads, device):
    """Keywords for the kernels, and the same in reference.py's words."""
    sinks = torch.linspace(-1, 2, num_heads, device=device) if mode.get("sinks") else None
    window, soft_cap = mode.get("window"), mode.get("soft_cap")
    ours = {"scale": 0.3, "window": window, "soft_cap": soft_cap, "sinks": sinks}
    return ours, {"scale": 0.3, "sliding_window": window, "logit_soft_cap": soft_cap, "sinks": sinks}


def close(out, expected):
    assert not out.isnan().any()
    return torch.testing.assert_close(out, expected, rtol=TOLERANCE[out.dtype], atol=TOLERANCE[out.dtype])


def decode(paged, q, **kwargs):
    out = torch.full_like(q, float("nan"))
    longest = int(paged.seq_lens.max())
    decode_attention(
        q, paged.kv[0], paged.kv[1], paged.block_tables, paged.seq_lens, max_seq_len=longest, out=out, **kwargs
    )
    return out


def check_decode(paged, num_heads, mode, *, dtype=torch.float32):
    num_rows, head_dim = len(paged.seq_lens), paged.kv.shape[-1]
    q = torch.randn(num_rows, num_heads, head_dim, generator=torch.Generator().manual_seed(1)).to(paged.kv)
    ours, theirs = options(mode, num_heads, q.device)
    cu_seqlens = torch.arange(num_rows + 1, device=q.device)
    expected = reference.paged_attention(q, paged.kv, paged.block_tables, paged.seq_lens, cu_seqlens, **theirs)
    close(decode(paged, q, **ours), expected)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size", "mode"), SAMPLE)
def test_decode_equals_reference(make_paged, num_heads, num_kv_heads, head_dim, block_size, mode):
    paged = make_paged([1, 63, 100], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size)
    check_decode(paged, num_heads, mode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "mode"), [(torch.float16, {}), (torch.float32, MODES[-1].values[0])], ids=["half", "all"]
)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size"), MODELS)
def test_decode_equals_reference_for_models(make_paged, num_heads, num_kv_heads, head_dim, block_size, mode, dtype):
    paged = make_paged(
        [1, 63, 100, 530], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype,
        heads_first=True,
    )  # fmt: skip
    check_decode(paged, num_heads, mode)


@pytest.mark.parametrize("mode", [{}, {"window": 600, "sinks": True}, {"window": 1}])
def test_decode_merges_splits(make_paged, mode):
    paged = make_paged([1100, 512, 513, 3], num_kv_heads=1, head_dim=16)
    check_decode(paged, 2, mode)


@pytest.mark.parametrize("mode", [{}, {"window": 600}, {"sinks": True, "soft_cap": 3.0}])
def test_a_plan_of_the_work_changes_no_bit(make_paged, mode):
    paged = make_paged([3, 0, 1030, 513], num_kv_heads=1, head_dim=16)
    q = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(1)).to(paged.kv)
    ours, _ = options(mode, 2, q.device)
    total = int(paged.seq_lens.sum())
    for spare in (0, 7):  # items past the end
        plan = plan_work(paged.seq_lens, num_work_items(4, total) + spare)
        assert torch.equal(decode(paged, q, plan=plan, **ours), decode(paged, q, **ours))


def test_a_plan_names_each_rows_splits_once(device):
    lens = torch.tensor([0, 512, 513, 5000, 1] * 7, dtype=torch.int32, device=device)
    plan = plan_work(lens, num_work_items(35, int(lens.sum())))
    items = [(item & 0xFFFF, item >> 16) for item in plan.work.tolist() if item >= 0]
    assert items == [(row, split) for row, n in enumerate(lens.tolist()) for split in range(max(1, -(-n // SPLIT)))]
    assert plan.starts.tolist() == [items.index((row, 0)) for row in range(35)]


def test_decode_takes_either_cache_layout_and_strided_queries(make_paged):
    for heads_first in (False, True):
        paged = make_paged([40, 7], num_kv_heads=2, head_dim=16, heads_first=heads_first)
        fused = torch.randn(2, 3 * 4, 16, generator=torch.Generator().manual_seed(1)).to(paged.kv)
        q = fused[:, 4:8]
        close(decode(paged, q, scale=0.3), decode(paged, q.contiguous(), scale=0.3))


def test_padded_rows_have_length_0_and_come_out_zero(make_paged):
    paged = make_paged([0, 33, 0], num_kv_heads=1, head_dim=16)
    out = decode(paged, torch.ones(3, 2, 16, device=paged.kv.device), scale=0.3)
    assert (out[[0, 2]] == 0).all()
    assert not out[1].isnan().any()


def test_a_rows_bits_do_not_depend_on_its_neighbours_or_the_grid(make_paged):
    paged = make_paged([600, 5, 1100], num_kv_heads=1, head_dim=16)
    q = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(1)).to(paged.kv)
    together = decode(paged, q, scale=0.3)
    for row in range(3):
        out = decode_attention(
            q[row : row + 1], paged.kv[0], paged.kv[1], paged.block_tables[row : row + 1],
            paged.seq_lens[row : row + 1], scale=0.3, max_seq_len=int(paged.seq_lens[row]),
        )  # fmt: skip
        assert torch.equal(out[0], together[row])


def check_chunks(paged, chunks, num_heads, mode):
    """Both ragged kernels; chunks: query tokens of each row, its last ones."""
    num_tokens = sum(chunks)
    q = torch.randn(num_tokens, num_heads, paged.kv.shape[-1], generator=torch.Generator().manual_seed(1)).to(paged.kv)
    ours, theirs = options(mode, num_heads, q.device)
    cu_seqlens = torch.tensor([0, *chunks]).cumsum(0).to(torch.int32).to(q.device)
    lens = paged.seq_lens.tolist()
    positions = torch.cat([torch.arange(n - m, n) for n, m in zip(lens, chunks, strict=True)]).to(torch.int32)
    positions = positions.to(q.device)
    expected = reference.paged_attention(q, paged.kv, paged.block_tables, paged.seq_lens, cu_seqlens, **theirs)
    args = (q, paged.kv[0], paged.kv[1], paged.block_tables, paged.seq_lens, cu_seqlens)
    out = torch.full_like(q, float("nan"))
    close(prefill_attention(*args, out=out, **ours), expected)
    out = torch.full_like(q, float("nan"))
    close(invariant_attention(*args, positions, max_seq_len=max(lens), out=out, **ours), expected)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size", "mode"), SAMPLE)
def test_chunks_equal_reference(make_paged, num_heads, num_kv_heads, head_dim, block_size, mode):
    paged = make_paged([1, 63, 100, 70], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size)
    check_chunks(paged, [1, 40, 7, 13], num_heads, mode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "mode"), [(torch.float16, {}), (torch.float32, MODES[-1].values[0])], ids=["half", "all"]
)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size"), MODELS)
def test_chunks_equal_reference_for_models(make_paged, num_heads, num_kv_heads, head_dim, block_size, mode, dtype):
    paged = make_paged(
        [1, 63, 70, 130], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    check_chunks(paged, [1, 20, 1, 40], num_heads, mode)


def test_a_row_without_queries_is_passed_over(make_paged):
    check_chunks(make_paged([20, 30, 40], num_kv_heads=1, head_dim=16), [5, 0, 3], 2, {})


@pytest.mark.parametrize("mode", [{"sinks": True}, {"window": 600}])
def test_a_chunk_over_several_splits(make_paged, mode):
    check_chunks(make_paged([530, 1030], num_kv_heads=1, head_dim=16), [20, 10], 2, mode)


@pytest.mark.usefixtures("dots_in_order")
def test_invariant_attention_has_the_bits_of_decode(make_paged):
    paged = make_paged([1100], num_kv_heads=1, head_dim=16)
    q = torch.randn(30, 2, 16, generator=torch.Generator().manual_seed(1)).to(paged.kv)
    positions = torch.arange(1070, 1100, dtype=torch.int32, device=q.device)
    cu_seqlens = torch.tensor([0, 30], dtype=torch.int32, device=q.device)
    args = (paged.kv[0], paged.kv[1], paged.block_tables)
    chunk = invariant_attention(
        q, *args, paged.seq_lens, cu_seqlens, positions, scale=0.3, max_seq_len=1100, window=700
    )
    for token in (0, 13, 29):
        seq_lens = positions[token : token + 1] + 1
        alone = decode_attention(
            q[token : token + 1], *args, seq_lens, scale=0.3, max_seq_len=int(seq_lens), window=700
        )
        assert torch.equal(alone[0], chunk[token])


def test_invariant_attention_works_in_slabs(make_paged, monkeypatch):
    from offgen_kernels import invariant_attention as module

    monkeypatch.setattr(module, "MAX_PARTIAL_BYTES", 4 * 2 * 3 * 17 * 7)  # 7 tokens
    check_chunks(make_paged([1100, 30], num_kv_heads=1, head_dim=16), [9, 10], 2, {})


def test_blocks_beyond_2_31_values_are_reached(device):
    """The pool is memory that is reserved and never touched, but for its last block."""
    num_blocks, block_size, head_dim = (1 << 31) // (16 * 64) + 3, 16, 64
    pool = torch.empty(num_blocks, block_size, 1, head_dim, dtype=torch.float16, device=device)
    last = num_blocks - 1
    pool[last] = torch.randn(block_size, 1, head_dim, generator=torch.Generator().manual_seed(0)).to(pool)
    tables = torch.tensor([[last]], dtype=torch.int32, device=device)
    seq_lens = torch.tensor([5], dtype=torch.int32, device=device)
    q = torch.ones(1, 1, head_dim, dtype=torch.float16, device=device)
    cu_seqlens = torch.tensor([0, 1], dtype=torch.int32, device=device)
    near = pool[last:].unsqueeze(0).expand(2, -1, -1, -1, -1)
    expected = reference.paged_attention(q, near, tables * 0, seq_lens, cu_seqlens, scale=0.1)
    close(decode_attention(q, pool, pool, tables, seq_lens, scale=0.1, max_seq_len=5), expected)
    close(prefill_attention(q, pool, pool, tables, seq_lens, cu_seqlens, scale=0.1), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (2, 3, 16)}, "does not fit"),
        ({"q": (2, 2, 17)}, "does not fit"),
        ({"seq_lens": (3,)}, "one row for each"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, message):
    q = torch.zeros(change.get("q", (2, 2, 16)))
    cache = torch.zeros(4, 16, 2, 16)
    tables = torch.zeros(2, 2, dtype=torch.int32)
    seq_lens = torch.zeros(change.get("seq_lens", (2,)), dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        decode_attention(q, cache, cache, tables, seq_lens, scale=1.0, max_seq_len=1)


@pytest.mark.parametrize("mode", [{}, {"window": 20, "soft_cap": 3.0}])
def test_fp8_caches_are_read_with_their_scales(make_paged, mode):
    paged = make_paged([5, 530], num_kv_heads=2, head_dim=16)
    values, scales = quantize_rows_fp8(paged.kv.nan_to_num(7.0) * 3)
    exact = dequantize_rows(values, scales)
    q = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1)).to(paged.kv)
    ours, theirs = options(mode, 4, q.device)
    cu_seqlens = torch.tensor([0, 1, 2], dtype=torch.int32, device=q.device)
    expected = reference.paged_attention(q, exact, paged.block_tables, paged.seq_lens, cu_seqlens, **theirs)
    ours |= {"k_scales": scales[0], "v_scales": scales[1]}
    args = (q, values[0], values[1], paged.block_tables, paged.seq_lens)
    close(decode_attention(*args, max_seq_len=530, **ours), expected)
    close(prefill_attention(*args, cu_seqlens, **ours), expected)
