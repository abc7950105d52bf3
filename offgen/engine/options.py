"""What may be asked of the engine; None means: size it yourself. Named like the command line's options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    device: str = "auto"  # auto, cuda, cpu
    dtype: str = "auto"  # auto, float32, bfloat16, float16
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_blocks: int | None = None  # --num-gpu-blocks-override
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"  # auto, bf16, fp8, int8
    prefix_caching: bool = True
    chunked_prefill: bool = True
    batching: str = "continuous"  # continuous, dynamic, static
    order_policy: str = "auto"  # auto, input, longest-first, prefix
    step_shape: str = "auto"  # auto, mixed, separate, measured; for measurements: not on the command line
    quantization: str = "none"  # none, int8, fp8
    load_format: str = "auto"  # auto, safetensors, gguf, dummy
    model_impl: str = "auto"  # auto, native, transformers
    attention_backend: str = "auto"  # auto, cpu, triton
    threads: int | None = None
    enforce_eager: bool = False
    batch_invariant: bool | None = None  # None: on a CPU, where it costs nothing; not on a GPU
