"""Whole steps and whole jobs on a GPU, with random weights in the shapes of known models; and transformers' own."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "eos_token_id": 128001, "bos_token_id": 128000,
}  # fmt: skip
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "eos_token_id": 151645,
}  # fmt: skip
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
    "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
MICRO = {
    **SMOLLM2, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
BLOCK_SIZE = 16


def measure(smoke: bool) -> Iterator[dict[str, Any]]:
    if smoke:
        yield from _steps("micro", MICRO, (3,), context=20, smoke=True)
        return
    yield from _steps("llama-3.1-8b", LLAMA_8B, (64, 256, 512), context=1024, smoke=False)
    yield from _steps("smollm2-135m", SMOLLM2, (256,), context=1024, smoke=False)
    yield _job("qwen3-8b", QWEN3_8B, num_rows=256, num_in=1024, num_out=1024)
    yield _job("smollm2-135m", SMOLLM2, num_rows=1024, num_in=256, num_out=256)


def _steps(
    name: str, config: dict[str, Any], row_counts: tuple[int, ...], *, context: int, smoke: bool
) -> Iterator[dict[str, Any]]:
    """Decode steps at `context` tokens a row: as graphs and launched one by one, beside the floor."""
    from timing import measure_ceilings, time_eager_us

    from offgen.backends.cuda import CudaBackend
    from offgen.models import load_model

    device = torch.device("cpu" if smoke else "cuda")
    dtype = torch.float32 if smoke else torch.bfloat16
    ceilings = measure_ceilings(device)
    backend = CudaBackend(device, dtype=dtype, quantization="none", kv_cache_dtype="auto", batch_invariant=False)
    with _folder(config) as folder:
        model = load_model(folder, backend, load_format="dummy")
    specs = list(model.config.attention)
    blocks_per_row = -(-context // BLOCK_SIZE)
    most = max(row_counts)
    caches = backend.allocate_kv(len(specs), most * blocks_per_row, BLOCK_SIZE, specs)
    for cache in caches:
        cache.k.normal_()
        cache.v.normal_()
    for num_rows in row_counts:
        token_ids, inputs = _decode_step(num_rows, context, device, config["vocab_size"])
        kv_bytes = num_rows * blocks_per_row * backend.kv_bytes_per_block(BLOCK_SIZE, specs)
        for how, forward in (("graph", backend.capture(model.forward)), ("eager", model.forward)):

            def step(forward: Any = forward, token_ids: Any = token_ids, inputs: Any = inputs) -> Any:
                with torch.inference_mode():
                    return model.compute_logits(forward(token_ids, caches, inputs)).argmax(-1)

            for _ in range(4):  # each slot's graph is recorded at its second turn
                step()
            us = time_eager_us(step, device, repeats=20).us
            floor = _floor_us(model.weight_bytes, num_rows, kv_bytes, ceilings)
            yield {
                "op": f"step {name} {how}", "shape": f"{num_rows} rows at {context}", "us": us,
                "of_ceiling": floor / us, "floor_us": floor, "note": f"{num_rows / us * 1e6:.0f} tokens/s",
            }  # fmt: skip


def _floor_us(weight_bytes: int, num_rows: int, kv_bytes: int, ceilings: Any) -> float:
    """Weights are read once or multiplied at full rate, whichever takes longer; then the keys and values are read."""
    gemm = max(weight_bytes / ceilings.read_gb_s / 1e3, weight_bytes * num_rows / ceilings.gemm_tflop_s / 1e6)
    return gemm + kv_bytes / ceilings.read_gb_s / 1e3


def _decode_step(num_rows: int, context: int, device: torch.device, vocab_size: int) -> tuple[torch.Tensor, Any]:
    from offgen.backends.base import AttentionInputs

    blocks_per_row = -(-context // BLOCK_SIZE)
    tables = torch.randperm(num_rows * blocks_per_row, device=device).to(torch.int32).view(num_rows, -1)
    last = context - 1
    return torch.randint(0, vocab_size, (num_rows,), device=device), AttentionInputs(
        slots=tables[:, last // BLOCK_SIZE] * BLOCK_SIZE + last % BLOCK_SIZE,
        positions=torch.full((num_rows,), last, dtype=torch.int32, device=device),
        block_tables=tables,
        seq_lens=torch.full((num_rows,), context, dtype=torch.int32, device=device),
        cu_seqlens_q=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
        num_decodes=num_rows,
        max_seq_len=context,
        block_size=BLOCK_SIZE,
        total_seq_len=num_rows * context,
    )


def _job(name: str, config: dict[str, Any], *, num_rows: int, num_in: int, num_out: int) -> dict[str, Any]:
    """A whole job through the engine: prompts of token ids in, completions out, EOS ignored."""
    from offgen.engine import EngineOptions, open_engine
    from offgen.records import Prompt, Row
    from offgen.sampling.params import SamplingParams

    with _folder(config) as folder:
        engine = open_engine(folder, EngineOptions(device="cuda", load_format="dummy", batch_invariant=False))
    generator = torch.Generator().manual_seed(0)

    def prompts(count: int, max_tokens: int) -> list[Prompt]:
        ids = torch.randint(10, config["vocab_size"] - 300, (count, num_in), generator=generator).tolist()
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return [Prompt(Row(i, None, 0, {}, f"bench:{i}"), one, params) for i, one in enumerate(ids)]

    for _ in engine.generate(prompts(min(num_rows, 256), 24)):  # compiles, and records the graphs of full steps
        pass
    started = time.perf_counter()
    num_tokens = sum(c.num_completion_tokens for c in engine.generate(prompts(num_rows, num_out)))
    seconds = time.perf_counter() - started
    return {
        "op": f"job {name}", "shape": f"{num_rows} x {num_in} in, {num_out} out", "us": seconds * 1e6,
        "tokens_per_s": num_tokens / seconds, "spans_s": dict(engine.stats.spans_s), "steps": engine.stats.steps,
        "note": f"{seconds:.1f} s, {num_tokens / seconds:.0f} tokens/s",
    }  # fmt: skip


def measure_transformers(smoke: bool) -> Iterator[dict[str, Any]]:
    """`generate_batch` as shipped, fewer rows; nothing under the interpreter."""
    if smoke:
        return
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    num_rows, num_in, num_out = 64, 1024, 64
    with _folder(LLAMA_8B) as folder, torch.device("cuda"):
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="paged|sdpa").eval()
    ids = torch.randint(10, 128000, (num_rows, num_in)).tolist()
    options = GenerationConfig(max_new_tokens=num_out, do_sample=False, eos_token_id=-1, pad_token_id=0)
    model.generate_batch(inputs=ids[:4], generation_config=options)
    started = time.perf_counter()
    outputs = model.generate_batch(inputs=ids, generation_config=options)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(one.generated_tokens) for one in outputs.values())
    yield {
        "op": "transformers generate_batch", "shape": f"{num_rows} x {num_in} in, {num_out} out", "us": seconds * 1e6,
        "tokens_per_s": num_tokens / seconds, "note": f"{seconds:.1f} s, {num_tokens / seconds:.0f} tokens/s",
    }  # fmt: skip
    yield _job("llama-3.1-8b", LLAMA_8B, num_rows=num_rows, num_in=num_in, num_out=num_out)


@contextmanager
def _folder(config: dict[str, Any]) -> Iterator[Path]:
    """A model folder that holds a config.json only."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield Path(name)
