"""What memory a model needs and what a step costs, as its shape lets expect. Loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offgen.config import EngineConfig
from offgen.scheduling.cost_model import CostModel

if TYPE_CHECKING:
    from offgen.checkpoints import Checkpoint
    from offgen.engine.machine import Speed
    from offgen.models import ModelConfig

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "bf16": 2, "fp8": 1, "int8": 1}
STEP_OVERHEAD_S = {"cpu": 1e-3, "cuda": 3e-4}  # scheduling, launches, reading ids back
DEFAULT_MAX_NUM_SEQS = {"cpu": 128, "cuda": 256}


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model needs on a device."""

    device: str
    dtype: str
    num_weights: int
    weight_bytes: int
    kv_bytes_per_token: int
    block_size: int
    kv_bytes: int  # of the pool
    speed: Speed

    @property
    def num_blocks(self) -> int:
        return self.kv_bytes // (self.kv_bytes_per_token * self.block_size)

    @property
    def default_max_num_seqs(self) -> int:
        return DEFAULT_MAX_NUM_SEQS[self.device]

    def cost_model(self) -> CostModel:
        """Each token costs two operations a weight; each step reads the weights, and the KV of its rows, once."""
        return CostModel(
            step_s=STEP_OVERHEAD_S[self.device] + self.weight_bytes / self.speed.bytes_per_s,
            prefill_token_s=2 * self.num_weights / self.speed.flops,
            decode_row_s=2 * self.num_weights / max(self.speed.row_flops, self.speed.flops / 4),
            kv_byte_s=1 / self.speed.bytes_per_s,
            kv_bytes_per_token=self.kv_bytes_per_token,
        )

    def to_dict(self, *, longest_row: int) -> dict[str, Any]:
        return {
            "device": self.device,
            "dtype": self.dtype,
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_of_the_longest_row": longest_row * self.kv_bytes_per_token,
            "kv_pool_bytes": self.kv_bytes,
            "kv_blocks": self.num_blocks,
            "available_bytes": self.speed.memory_bytes,
            "fits": self.weight_bytes + longest_row * self.kv_bytes_per_token <= self.speed.memory_bytes,
        }


def footprint_of(engine: EngineConfig, checkpoint: Checkpoint, shape: ModelConfig) -> Footprint:
    """Weights and KV in the dtypes that were asked for."""
    from offgen.engine.machine import describe_machine, measure_speed
    from offgen.models import checkpoint_dtype

    device = describe_machine()["device"] if engine.device == "auto" else engine.device
    dtype = {"cpu": "float32", "cuda": "bfloat16"}[device] if engine.dtype == "auto" else engine.dtype
    speed = measure_speed(device, dtype)
    num_weights = checkpoint.weight_bytes // ITEM_BYTES.get(checkpoint_dtype(checkpoint.folder), 2)
    weight_bytes = num_weights * (1 if engine.quantization == "int8" else ITEM_BYTES[dtype])
    as_weights = "int8" if engine.quantization == "int8" and device == "cpu" else dtype
    kv_item = ITEM_BYTES[as_weights if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype]
    kv_per_token = sum(2 * one.num_kv_heads * one.head_dim for one in shape.attention) * kv_item
    if engine.num_gpu_blocks_override is not None:
        pool = engine.num_gpu_blocks_override * engine.block_size * kv_per_token
    elif engine.kv_cache_memory is not None:
        pool = engine.kv_cache_memory
    else:
        left = max(speed.memory_bytes - weight_bytes, 0)
        pool = int(left * engine.gpu_memory_utilization) if device == "cuda" else min(left // 2, 4 << 30)
    return Footprint(device, dtype, num_weights, weight_bytes, kv_per_token, engine.block_size, pool, speed)
