"""Opens an engine: device, model, memory plan, scheduler, in that order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from offgen.backends import Backend, compile_ahead, open_backend
from offgen.engine.engine import Engine
from offgen.engine.kv_cache import Sizing, plan_memory, take_pool
from offgen.engine.model_runner import ModelRunner
from offgen.engine.options import EngineOptions
from offgen.models import load_model
from offgen.models.base import Model
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.scheduler import Scheduler
from offgen.stats.engine import EngineStats


def prepare(options: EngineOptions) -> None:
    """Begin what takes long and needs no model: where a CPU will do the work, its kernels are compiled if need be."""
    if options.attention_backend not in ("auto", "cpu") or options.device not in ("auto", "cpu"):
        return
    if options.device == "cpu" or not torch.cuda.is_available():
        compile_ahead.start(
            dtype=options.dtype, quantization=options.quantization, kv_cache_dtype=options.kv_cache_dtype
        )


def open_engine(
    folder: Path,
    options: EngineOptions,
    *,
    eos_ids: frozenset[int] | None = None,
    wrap: Callable[[Backend], Backend] | None = None,
) -> Engine:
    """Load the model in `folder` (Hugging Face layout) and make it ready to generate.

    wrap      puts something between models and backend, such as a stopwatch
    eos_ids   the ids that end a completion, where the tokenizer knows more of them than the model's own files

    Raises UsageError for a model or options that this machine cannot run.
    """
    backend = open_backend(
        options.device,
        dtype=options.dtype,
        threads=options.threads,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        attention_backend=options.attention_backend,
        batch_invariant=options.batch_invariant,
    )
    if wrap is not None:
        backend = wrap(backend)
    model = load_model(
        folder,
        backend,
        load_format=options.load_format,
        model_impl=options.model_impl,
        max_model_len=options.max_model_len,
    )
    eos_ids = model.config.eos_token_ids if eos_ids is None else eos_ids
    pool = take_pool(model, backend, plan_memory(model, backend, options))
    sizing, stats = pool.sizing, EngineStats(kv_blocks=pool.sizing.num_blocks)
    runner = ModelRunner(
        model,
        backend,
        pool.kv_caches,
        max_num_seqs=sizing.max_num_seqs,
        max_model_len=sizing.max_model_len,
        block_size=sizing.block_size,
        eos_ids=eos_ids,
        enforce_eager=options.enforce_eager,
        stats=stats,
    )
    return Engine(
        runner=runner,
        scheduler=Scheduler(_scheduling(sizing, options, backend)),
        backend=backend,
        sizing=sizing,
        eos_ids=eos_ids,
        stats=stats,
        about=_about(model, backend, sizing, options),
    )


def _about(model: Model, backend: Backend, sizing: Sizing, options: EngineOptions) -> dict[str, object]:
    return {
        "device": str(backend.device),
        "backend": backend.name,
        "dtype": str(backend.dtype).removeprefix("torch."),
        "quantization": options.quantization,
        "architecture": model.config.architecture,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": sizing.kv_bytes // (sizing.num_blocks * sizing.block_size),
    }


def _scheduling(sizing: Sizing, options: EngineOptions, backend: Backend) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=sizing.max_num_seqs,
        max_num_batched_tokens=sizing.max_num_batched_tokens,
        max_model_len=sizing.max_model_len,
        block_size=sizing.block_size,
        num_blocks=sizing.num_blocks,
        prefix_caching=options.prefix_caching,
        chunked_prefill=options.chunked_prefill,
        batching=options.batching,
        order_policy=options.order_policy,
        step_shape=backend.step_shape if options.step_shape == "auto" else options.step_shape,
        steps_ahead=backend.steps_ahead,
    )
