"""The GPU backend on a GPU: graphs replay what was launched, FP8 weights, and bits that no neighbour moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu

CONTEXT = 256


@pytest.fixture(scope="module")
def oracle() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, eos_token_id=2, bos_token_id=1, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-llama")
    oracle.save_pretrained(path)
    return path


def prompts(count: int, **params: Any) -> list[Any]:
    from offgen.records import Prompt, Row
    from offgen.sampling.params import SamplingParams

    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 150, (count,), generator=generator).tolist()
    ids = [torch.randint(3, 320, (n,), generator=generator).tolist() for n in lengths]
    return [Prompt(Row(i, None, 0, {}, f"test:{i}"), one, SamplingParams(**params)) for i, one in enumerate(ids)]


def generate(folder: Path, rows: list[Any], **options: Any) -> dict[int, list[int]]:
    from offgen.engine import EngineOptions, open_engine

    engine = open_engine(folder, EngineOptions(**{"device": "cuda", "num_blocks": 1024, **options}))
    return {c.row.row_id: list(c.token_ids) for c in engine.generate(rows)}


def test_greedy_tokens_in_float32_equal_transformers(oracle, folder):
    rows = prompts(12, max_tokens=30)
    found = generate(folder, rows, dtype="float32", batch_invariant=False)
    model = oracle.cuda()
    for row in rows:
        ids = torch.tensor([list(row.token_ids)], device="cuda")
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, pad_token_id=0
        )
        assert found[row.row.row_id] == out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "top_p": 0.9}], ids=["greedy", "sampled"])
def test_invariant_tokens_are_the_same_in_every_batch(folder, params):
    rows = prompts(40, max_tokens=60, **params)
    options = {"dtype": "bfloat16", "batch_invariant": True}
    alone = generate(folder, rows, max_num_seqs=1, **options)
    assert generate(folder, rows, **options) == alone
    assert generate(folder, rows[::-1], max_num_seqs=7, max_num_batched_tokens=33, **options) == alone
    assert generate(folder, rows, num_blocks=24, prefix_caching=False, **options) == alone  # preempts


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "top_k": 40, "top_p": 0.9}], ids=["greedy", "sampled"])
def test_steps_recorded_from_embedding_to_ids_give_the_eager_ids(folder, params):
    from offgen.engine import EngineOptions, open_engine

    rows = prompts(13, max_tokens=60, **params)
    options = {"device": "cuda", "num_blocks": 1024, "dtype": "bfloat16", "batch_invariant": True}
    engine = open_engine(folder, EngineOptions(**options))
    found = {c.row.row_id: list(c.token_ids) for c in engine.generate(rows)}
    whole = engine._runner._decode_step._whole
    assert whole.refusal is None and whole.num_graphs > 0
    assert found == generate(folder, rows, enforce_eager=True, **options)


def test_graphs_replay_what_eager_launches(folder):
    from offgen.backends.base import AttentionInputs
    from offgen.backends.cuda import CudaBackend
    from offgen.models import load_model

    backend = CudaBackend(
        torch.device("cuda"), dtype=torch.bfloat16, quantization="none", kv_cache_dtype="auto", batch_invariant=False
    )
    model = load_model(folder, backend)
    caches = backend.allocate_kv(2, 64, 16, list(model.config.attention))
    for cache in caches:
        cache.k.normal_()
        cache.v.normal_()
    captured = backend.capture(model.forward)
    for step in range(8):
        num_rows, length = 3, 20 + step
        tables = torch.arange(num_rows * 4, device="cuda", dtype=torch.int32).view(num_rows, 4)
        inputs = AttentionInputs(
            slots=tables[:, (length - 1) // 16] * 16 + (length - 1) % 16,
            positions=torch.full((num_rows,), length - 1, device="cuda", dtype=torch.int32),
            block_tables=tables,
            seq_lens=torch.full((num_rows,), length, device="cuda", dtype=torch.int32),
            cu_seqlens_q=torch.arange(num_rows + 1, device="cuda", dtype=torch.int32),
            num_decodes=num_rows,
            max_seq_len=length,
            block_size=16,
        )
        token_ids = torch.tensor([5, 6, 7 + step], device="cuda")
        with torch.inference_mode():
            torch.testing.assert_close(
                captured(token_ids, caches, inputs), model.forward(token_ids, caches, inputs), rtol=2e-2, atol=2e-2
            )
    assert captured.num_graphs == 2
    assert captured.refusal is None


def test_the_pool_is_what_a_measured_step_leaves(folder):
    from offgen.engine import EngineOptions, open_engine

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    options = EngineOptions(
        device="cuda",
        gpu_memory_utilization=(total - free + (4 << 30)) / total,  # 4 GiB of what is free
        max_num_seqs=512,
        max_num_batched_tokens=8192,
    )
    engine = open_engine(folder, options)
    assert "measured in a step of 8192 tokens in 512 rows" in engine.sizing.why["num_blocks"]
    assert engine.max_model_len == CONTEXT and engine.sizing.kv_bytes < 4 << 30
    rows = prompts(40, max_tokens=20)
    assert len(list(engine.generate(rows))) == 40


def test_what_a_run_takes_at_its_worst_is_measured():
    from offgen.backends import open_backend

    backend = open_backend("cuda")
    peak = backend.peak_bytes(lambda: torch.empty(1 << 28, dtype=torch.uint8, device="cuda").clone())
    assert peak == 2 << 28


def test_dummy_weights_are_the_same_each_time():
    from offgen.models.dummy import RandomTensors

    first, second = torch.empty(2, 512, 256, dtype=torch.bfloat16, device="cuda")
    RandomTensors().take_into("a.weight", first)
    RandomTensors().take_into("a.weight", second)
    assert torch.equal(first, second)
    assert abs(float(first.float().std()) - 0.02) < 1e-3


def test_fp8_weights_stay_near():
    from offgen.backends.cuda_linear import Fp8Linear

    weight, bias = torch.randn(512, 1024, device="cuda").bfloat16(), torch.randn(512, device="cuda").bfloat16()
    x = torch.randn(70, 1024, device="cuda").bfloat16()
    out, expected = Fp8Linear(weight, bias)(x), torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    assert (out.float() - expected).norm() < 0.05 * expected.norm()
