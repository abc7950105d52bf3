"""The kernels as a GPU runs them: bfloat16 at the shapes of real models, against the reference in float32."""

from __future__ import annotations

import pytest
import torch
from offgen_kernels import reference, reference_sampling
from offgen_kernels.decode_attention import decode_attention
from offgen_kernels.gated_activation import gelu_and_mul, silu_and_mul
from offgen_kernels.invariant_attention import invariant_attention
from offgen_kernels.logprobs import token_logprobs, top_logprobs
from offgen_kernels.prefill_attention import prefill_attention
from offgen_kernels.quantize_rows_fp8 import quantize_rows_fp8
from offgen_kernels.reference_fp8 import quantize_rows_fp8 as quantize_rows_fp8_reference
from offgen_kernels.rms_norm import add_rms_norm
from offgen_kernels.rope_and_write_kv import rope_and_write_kv
from offgen_kernels.sample import sample

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
MODELS = [
    (9, 3, 64, None),
    (16, 8, 128, None),
    (32, 8, 128, None),
    (4, 1, 256, 512),
    (32, 32, 96, None),
    (71, 1, 64, 30),
]
IDS = ["smollm2", "qwen3-0.6b", "llama-8b", "gemma3", "phi-96", "falcon"]


def error(out, expected):
    assert out.isfinite().all()
    return float((out.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "window"), MODELS, ids=IDS)
def test_attention_in_bfloat16(make_paged, num_heads, num_kv_heads, head_dim, window):
    lens = [1, 63, 100, 2000, 513]
    paged = make_paged(lens, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=BF16, heads_first=True)
    chunks = [1, 63, 33, 300, 1]
    q = torch.randn(sum(chunks), num_heads, head_dim, device="cuda", dtype=BF16)
    cu_seqlens = torch.tensor([0, *chunks], device="cuda").cumsum(0).int()
    positions = torch.cat([torch.arange(n - m, n) for n, m in zip(lens, chunks, strict=True)]).int().cuda()
    scale = head_dim**-0.5
    expected = reference.paged_attention(
        q.float(), paged.kv, paged.block_tables, paged.seq_lens, cu_seqlens, scale=scale, sliding_window=window
    )
    args = (paged.kv[0], paged.kv[1], paged.block_tables, paged.seq_lens)
    nan = torch.full_like(q, float("nan"))
    assert error(prefill_attention(q, *args, cu_seqlens, scale=scale, window=window, out=nan.clone()), expected) < 5e-3
    invariant = invariant_attention(
        q, *args, cu_seqlens, positions, scale=scale, max_seq_len=2000, window=window, out=nan.clone()
    )
    assert error(invariant, expected) < 5e-3
    last = cu_seqlens[1:].long() - 1
    decoded = decode_attention(q[last], *args, scale=scale, max_seq_len=2000, window=window)
    assert error(decoded, expected[last]) < 5e-3
    assert torch.equal(decoded, invariant[last])  # the proof that chunks and single tokens have the same bits


def test_fp8_caches_as_they_are_written(make_paged):
    num_tokens, shape = 500, {"num_heads": 32, "num_kv_heads": 8}
    qkv = torch.randn(num_tokens, 48 * 128, device="cuda", dtype=BF16)
    cos_sin = torch.rand(num_tokens, 128, device="cuda")
    slots = torch.randperm(512, device="cuda")[:num_tokens].int()
    positions = torch.arange(num_tokens, device="cuda", dtype=torch.int32)
    exact = torch.zeros(2, 32, 16, 8, 128, device="cuda", dtype=BF16)
    values = torch.zeros_like(exact, dtype=torch.float8_e4m3fn)
    scales = torch.zeros(2, 32, 16, 8, device="cuda")
    expected = reference.rope_and_write_kv(qkv, cos_sin, exact, positions, slots, **shape)
    q = rope_and_write_kv(
        qkv, cos_sin, values[0], values[1], positions, slots, k_scales=scales[0], v_scales=scales[1], **shape
    )
    assert error(q, expected) < 5e-3
    assert error(values.float() * scales[..., None], exact) < 0.04


def test_small_ops_in_bfloat16():
    x, residual, weight = (torch.randn(s, device="cuda", dtype=BF16) for s in ((300, 4096), (300, 4096), (4096,)))
    expected = reference.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    for out, right in zip(add_rms_norm(x, residual, weight, 1e-6), expected, strict=True):
        assert error(out, right) < 5e-3
    gate_up = torch.randn(300, 2 * 14336, device="cuda", dtype=BF16)
    assert error(silu_and_mul(gate_up), reference.silu_and_mul(gate_up)) < 5e-3
    for approximate in ("none", "tanh"):
        assert error(gelu_and_mul(gate_up, approximate), reference.gelu_and_mul(gate_up, approximate)) < 5e-3
    values, scale = quantize_rows_fp8(gate_up)
    right, right_scale = quantize_rows_fp8_reference(gate_up)
    torch.testing.assert_close(scale, right_scale)
    assert (values.float() == right.float()).float().mean() > 0.999


@pytest.mark.parametrize("vocab", [128256, 151936, 50257])
def test_sampling_at_full_vocabularies(vocab):
    num_rows = 64
    logits = torch.randn(num_rows, vocab, device="cuda") * 3
    row = torch.arange(num_rows, device="cuda")
    columns = {
        "temperature": torch.where(row % 5 == 0, 0.0, 0.7),
        "top_k": torch.where(row % 3 == 0, 50, 0).int(),
        "top_p": torch.where(row % 2 == 0, 0.9, 1.0),
        "min_p": torch.where(row % 7 == 0, 0.02, 0.0),
        "keys": row * 7919,
        "positions": row % 11,
    }
    ids, non_finite = sample(logits, **columns)
    expected, _ = reference_sampling.sample(logits, **columns)
    assert (ids == expected).sum() >= num_rows - 1  # the last bit of a logarithm may decide one
    assert not non_finite.any()
    logprobs, ranks = token_logprobs(logits, ids)
    right, right_ranks = reference_sampling.token_logprobs(logits, ids)
    torch.testing.assert_close(logprobs, right, rtol=1e-4, atol=1e-4)
    assert torch.equal(ranks, right_ranks)
    assert torch.equal(top_logprobs(logits, 20)[0], reference_sampling.top_logprobs(logits, 20)[0])
