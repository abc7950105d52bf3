"""Plans memory: how many blocks, rows and tokens a step may have on this machine, and why. Allocates nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from offgen.backends.base import Backend
from offgen.engine.options import EngineOptions
from offgen.errors import UsageError
from offgen.models.base import Model

GIB = 1 << 30


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
    num_blocks = _pool(backend, options, block_bytes, max_num_seqs * _blocks(max_model_len, options.block_size), why)
    if num_blocks * options.block_size < max_model_len:
        max_model_len = num_blocks * options.block_size
        why["max_model_len"] = f"the KV pool holds {num_blocks} blocks of {options.block_size} tokens"
    if max_model_len < 2:
        raise UsageError("the KV pool has no room for a prompt and one token", hint="--kv-cache-memory 1GiB")
    return Sizing(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=options.block_size,
        num_blocks=num_blocks,
        kv_bytes=num_blocks * block_bytes,
        why=why,
    )


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


def _pool(backend: Backend, options: EngineOptions, block_bytes: int, most: int, why: dict[str, str]) -> int:
    """Blocks in the pool; never more than `most`, which all rows at full length would fill."""
    if options.num_blocks is not None:
        return options.num_blocks
    if options.kv_cache_memory_bytes is not None:
        return max(1, options.kv_cache_memory_bytes // max(block_bytes, 1))
    budget = backend.kv_budget_bytes(options.gpu_memory_utilization)
    num_blocks = max(1, min(most, budget // max(block_bytes, 1)))
    reason = "every row at full length fits" if num_blocks == most else f"{budget / GIB:.1f} GiB of free memory"
    return _chosen(why, "num_blocks", num_blocks, reason)


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _chosen(why: dict[str, str], name: str, value: int, reason: str) -> int:
    why[name] = reason
    return value
