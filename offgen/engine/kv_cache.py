"""Plans memory: how many blocks, rows and tokens a step may have on this machine, and why; then takes the pool.

Where the device can be measured the pool is what the largest step leaves. What was planned may still be refused, for
others use the device too: then the pool shrinks until it fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from offgen.backends.base import Backend, KVCache
from offgen.engine.largest_step import StepSize, peak_bytes
from offgen.engine.options import EngineOptions
from offgen.errors import JobError, UsageError
from offgen.models.base import Model

GIB = 1 << 30
SHRINK = 0.9  # of the blocks, each time the device refuses


@dataclass(frozen=True, slots=True)
class Sizing:
    """What the engine runs with. `why` has a sentence for each value that was chosen rather than asked for."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    kv_bytes: int
    why: dict[str, str]


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV caches, one per layer, and the sizing they ended up with."""

    kv_caches: list[KVCache]
    sizing: Sizing


def plan_memory(model: Model, backend: Backend, options: EngineOptions) -> Sizing:
    """Size the KV pool and the step. Raises UsageError where the options leave no room for a single token."""
    why: dict[str, str] = {}
    block_bytes = backend.kv_bytes_per_block(options.block_size, list(model.config.attention))
    max_model_len = _context(model, options, why)
    max_num_seqs = options.max_num_seqs or _chosen(
        why, "max_num_seqs", backend.default_max_num_seqs, f"what {backend.name} fills"
    )
    max_num_batched_tokens = options.max_num_batched_tokens or _chosen(
        why,
        "max_num_batched_tokens",
        max(backend.default_max_num_batched_tokens, max_num_seqs),
        f"what {backend.name} computes at full rate",
    )
    sizing = Sizing(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=options.block_size,
        num_blocks=0,
        kv_bytes=0,
        why=why,
    )
    if options.num_blocks is not None:
        return _with_blocks(sizing, options.num_blocks, block_bytes)
    if options.kv_cache_memory_bytes is not None:
        return _with_blocks(sizing, max(1, options.kv_cache_memory_bytes // max(block_bytes, 1)), block_bytes)
    return _with_pool(sizing, model, backend, options, block_bytes)


def take_pool(model: Model, backend: Backend, sizing: Sizing) -> Pool:
    """Allocate what was planned, or less where the device refuses: `why` says so.

    Raises JobError where not even a few blocks fit.
    """
    config, planned = model.config, sizing.num_blocks
    while True:
        try:
            caches = backend.allocate_kv(
                config.num_layers, sizing.num_blocks, sizing.block_size, list(config.attention)
            )
            return Pool(caches, sizing)
        except torch.OutOfMemoryError:
            pass  # what was allocated goes with the exception, after this line
        backend.release_memory()
        num_blocks = int(sizing.num_blocks * SHRINK)
        if num_blocks * sizing.block_size < 2:
            raise JobError(
                f"{backend.device} has no room for a KV pool beside the model", hint="--gpu-memory-utilization 0.85"
            )
        block_bytes = sizing.kv_bytes // sizing.num_blocks
        sizing = _with_blocks(sizing, num_blocks, block_bytes)
        sizing.why["num_blocks"] = f"{planned} did not fit: {backend.device} had {sizing.kv_bytes / GIB:.1f} GiB left"


def _context(model: Model, options: EngineOptions, why: dict[str, str]) -> int:
    limit = model.config.max_position_embeddings
    if options.max_model_len is None:
        return _chosen(why, "max_model_len", limit, "the model's context")
    if options.max_model_len > limit:
        reason = model.config.context_limit_reason
        raise UsageError(
            f"--max-model-len {options.max_model_len}: the model's context is {limit} tokens"
            + (f" ({reason})" if reason else ""),
            hint=f"--max-model-len {limit}",
        )
    return options.max_model_len


def _with_pool(sizing: Sizing, model: Model, backend: Backend, options: EngineOptions, block_bytes: int) -> Sizing:
    """The pool takes what the largest step leaves, and never more than all rows at full length would fill."""
    num_tokens = sizing.max_num_batched_tokens
    if not options.chunked_prefill:  # a prompt runs whole, beside the rows that decode
        num_tokens = max(num_tokens, sizing.max_model_len + sizing.max_num_seqs)
    asked = StepSize(num_tokens, sizing.max_num_seqs, sizing.max_model_len, sizing.block_size)
    step, step_bytes = _measured(model, backend, asked)
    if step != asked:
        reason = f"a step of {asked.num_tokens} tokens does not fit beside the weights"
        if not options.chunked_prefill:
            raise UsageError(reason, hint="--max-model-len, or leave chunked prefill on")
        sizing = replace(sizing, max_num_batched_tokens=step.num_tokens, max_num_seqs=step.num_rows)
        sizing.why.update(dict.fromkeys(("max_num_batched_tokens", "max_num_seqs"), reason))
    records = model.config.implementation == "native" and not options.enforce_eager
    graph_bytes = backend.graph_bytes(sizing.max_num_seqs) if records and step_bytes is not None else 0
    beside = None if step_bytes is None else step_bytes + graph_bytes
    budget = backend.kv_budget_bytes(options.gpu_memory_utilization, beside)
    if beside is not None and budget < block_bytes:
        raise UsageError(
            f"weights and a step of {step.num_tokens} tokens ({beside / GIB:.1f} GiB, graphs included) leave no room"
            f" for a KV pool in {options.gpu_memory_utilization:g} of {backend.device}",
            hint=f"--gpu-memory-utilization 0.97, or --max-num-batched-tokens {max(1, step.num_tokens // 4)}",
        )
    most = sizing.max_num_seqs * -(-sizing.max_model_len // sizing.block_size)
    num_blocks = max(1, min(most, budget // max(block_bytes, 1)))
    reason = "every row at full length fits" if num_blocks == most else f"{budget / GIB:.1f} GiB of free memory"
    if step_bytes is not None:
        reason += (
            f": {options.gpu_memory_utilization:g} of the device, less what is in use, {step_bytes / GIB:.2f} GiB"
            f" measured in a step of {step.num_tokens} tokens in {step.num_rows} rows, and {graph_bytes / GIB:.2f} GiB"
            " for graphs"
        )
    sizing.why["num_blocks"] = reason
    return _with_blocks(sizing, num_blocks, block_bytes)


def _measured(model: Model, backend: Backend, size: StepSize) -> tuple[StepSize, int | None]:
    """The largest step that fits, halved until it does, and its peak bytes (None: not measured)."""
    while True:
        try:
            return size, peak_bytes(model, backend, size)
        except torch.OutOfMemoryError:
            if size.num_tokens == 1:
                raise JobError(
                    f"{backend.device} has no room for a step of one token beside the weights",
                    hint="--quantization fp8, or a smaller model",
                ) from None
        backend.release_memory()
        size = size.halved()


def _with_blocks(sizing: Sizing, num_blocks: int, block_bytes: int) -> Sizing:
    """The same with a pool of so many blocks; rows can be no longer than it."""
    max_model_len = sizing.max_model_len
    if num_blocks * sizing.block_size < max_model_len:
        max_model_len = num_blocks * sizing.block_size
        sizing.why["max_model_len"] = f"the KV pool holds {num_blocks} blocks of {sizing.block_size} tokens"
    if max_model_len < 2:
        raise UsageError("the KV pool has no room for a prompt and one token", hint="--kv-cache-memory 1GiB")
    return replace(sizing, max_model_len=max_model_len, num_blocks=num_blocks, kv_bytes=num_blocks * block_bytes)


def _chosen(why: dict[str, str], name: str, value: int, reason: str) -> int:
    why[name] = reason
    return value
