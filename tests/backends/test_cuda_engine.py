"""The whole engine on the Triton backend: the plain-torch one's tokens, whatever the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from offgen.backends.cuda import CudaBackend
from offgen.engine import EngineOptions, open_engine, opening
from offgen.records import Prompt, Row
from offgen.sampling.params import SamplingParams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [1, 9, 17, 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=128, eos_token_id=2, bos_token_id=1,
        initializer_range=0.3,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("micro-llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def save_family(family: str, path: Path) -> Path:
    """A micro model of a family with what Llama lacks: head norms, windows, soft caps, GELU, biases, wide heads."""
    import transformers

    shape = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
        "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3,
    }  # fmt: skip
    config, model = {
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    }[family]
    extra = {"sliding_window": 8} if family.startswith("gemma") else {}
    torch.manual_seed(0)
    model(config(**shape, **extra)).save_pretrained(path)
    return path


def prompts(num_rows: int, max_tokens: int) -> list[Prompt]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 96, (LENGTHS[i % len(LENGTHS)],), generator=generator).tolist() for i in range(num_rows)]
    return [
        Prompt(Row(i, None, 0, {}, f"test:{i}"), ids, SamplingParams(max_tokens=max_tokens, temperature=0.8 * (i % 2)))
        for i, ids in enumerate(rows)
    ]


def generate(folder: Path, rows: list[Prompt], **options: Any) -> dict[int, list[int]]:
    engine = open_engine(folder, EngineOptions(device=DEVICE, dtype="float32", num_blocks=64, **options))
    done = list(engine.generate(rows))
    assert [c.error for c in done] == [None] * len(rows)
    return {c.row.row_id: list(c.token_ids) for c in done}


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_backend(device: str, *, kv_cache_dtype: str, batch_invariant: bool, **_: Any) -> CudaBackend:
        return CudaBackend(
            torch.device(device), dtype=torch.float32, quantization="none", kv_cache_dtype=kv_cache_dtype,
            batch_invariant=batch_invariant,
        )  # fmt: skip

    monkeypatch.setattr(opening, "open_backend", open_backend)


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 16, "batch_invariant": False}], ids=str)
def test_tokens_equal_the_torch_backends(folder, request, options):
    rows = prompts(4, max_tokens=4)
    expected = generate(folder, rows, attention_backend="torch")
    request.getfixturevalue("on_triton")
    assert generate(folder, rows, **options) == expected


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_largest_step_runs_on_these_kernels(folder, on_triton, monkeypatch, batch_invariant):
    """As it is run on a card to measure it: one block for all rows, of lengths that differ."""
    has_run = []

    def peak_bytes(self: CudaBackend, run: Any) -> int:
        run()
        has_run.append(True)
        return 0

    monkeypatch.setattr(CudaBackend, "peak_bytes", peak_bytes)
    options = EngineOptions(
        device="cpu", dtype="float32", max_num_seqs=3, max_num_batched_tokens=53, batch_invariant=batch_invariant
    )
    assert "53 tokens in 3 rows" in open_engine(folder, options).sizing.why["num_blocks"]
    assert has_run


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"batch_invariant": True},
        {"batch_invariant": False},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 7, "max_num_seqs": 4},
        {"block_size": 1},
        {"block_size": 48},
        {"prefix_caching": False},
    ],
    ids=str,
)
def test_tokens_equal_the_torch_backends_whatever_the_batch(folder, request, options):
    rows = prompts(10, max_tokens=12)
    expected = generate(folder, rows, attention_backend="torch")
    request.getfixturevalue("on_triton")
    assert generate(folder, rows, **options) == expected


@pytest.mark.slow
def test_preempted_rows_come_out_as_if_nothing_had_happened(folder, on_triton):
    rows = prompts(8, max_tokens=20)
    whole = generate(folder, rows)
    engine = open_engine(folder, EngineOptions(device=DEVICE, dtype="float32", num_blocks=8, prefix_caching=False))
    assert {c.row.row_id: list(c.token_ids) for c in engine.generate(rows)} == whole
    assert engine.stats.num_preemptions > 0


@pytest.mark.slow
def test_fp8_keys_and_values_give_whole_completions(folder, on_triton):
    assert all(len(ids) > 0 for ids in generate(folder, prompts(4, max_tokens=6), kv_cache_dtype="fp8").values())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gemma3"])
def test_other_families_give_the_torch_backends_tokens(tmp_path, request, family):
    folder = save_family(family, tmp_path / family)
    rows = prompts(4, max_tokens=6)
    expected = generate(folder, rows, attention_backend="torch")
    request.getfixturevalue("on_triton")
    assert generate(folder, rows, batch_invariant=False, max_num_batched_tokens=16) == expected
