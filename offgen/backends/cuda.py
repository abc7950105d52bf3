"""The GPU backend: offgen_kernels behind the contract of base.py, and graphs of whole steps.

On CPU tensors it runs under Triton's interpreter, for tests only: see interpreter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from offgen_kernels.attention_shapes import SPLIT
from offgen_kernels.decode_attention import decode_attention
from offgen_kernels.gated_activation import gelu_and_mul, silu_and_mul
from offgen_kernels.invariant_attention import invariant_attention
from offgen_kernels.prefill_attention import prefill_attention
from offgen_kernels.rms_norm import add_rms_norm, rms_norm
from offgen_kernels.rope_and_write_kv import rope_and_write_kv
from offgen_kernels.sample import sample
from offgen_kernels.work_plan import MAX_PLAN_ROWS, WorkPlan, num_work_items, plan_work
from offgen_kernels.write_kv import write_kv

from offgen.backends import cuda_kv
from offgen.backends.base import AttentionInputs, AttentionSpec, Download, KVCache, Linear, SampleOp
from offgen.backends.cuda_graphs import GRAPH_BYTES, CudaCapture, StepGraphs, expected_graphs
from offgen.backends.cuda_linear import make_linear
from offgen.backends.host import available_memory_bytes, kv_budget_bytes
from offgen.errors import UsageError

_UNMEASURED_STEP_BYTES = 2 << 30  # a step's activations and logits, and graphs, for who has not measured them


@dataclass(frozen=True, slots=True)
class CudaDownload:
    """A copy under way to the host."""

    host: torch.Tensor
    done: torch.cuda.Event | None

    def read(self) -> torch.Tensor:
        if self.done is not None:
            self.done.synchronize()
        return self.host


class CudaBackend:
    """The contract of base.Backend, on one GPU."""

    name = "triton"

    def __init__(
        self,
        device: torch.device,
        *,
        dtype: torch.dtype,
        quantization: str,
        kv_cache_dtype: str,
        batch_invariant: bool,
    ) -> None:
        if quantization not in ("none", "fp8"):
            raise UsageError(f"quantization {quantization!r} is not available with triton kernels", hint="none or fp8")
        if kv_cache_dtype not in ("auto", "bf16", "fp8"):
            raise UsageError(f"KV cache dtype {kv_cache_dtype!r} is not available with triton kernels", hint="fp8")
        if device.type == "cpu" and (dtype == torch.bfloat16 or kv_cache_dtype == "bf16"):
            raise UsageError("Triton's interpreter has no bfloat16", hint="--dtype float32")
        if quantization == "fp8" and batch_invariant:
            raise UsageError("FP8 weights are not available in batch-invariant mode", hint="--no-batch-invariant")
        self.device, self.dtype = device, dtype
        self._quantization, self._is_batch_invariant = quantization, batch_invariant
        self._planned: tuple[AttentionInputs, WorkPlan] | None = None
        self._capture: CudaCapture | None = None
        self._kv_dtype = {"auto": dtype, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[kv_cache_dtype]

    # weights

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        weight = weight.to(self.device, self.dtype)
        bias = None if bias is None else bias.to(self.device, self.dtype)
        return make_linear(weight, bias, quantization=self._quantization, is_batch_invariant=self._is_batch_invariant)

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, weight)

    # small ops

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(x)

    def gelu_and_mul(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        return gelu_and_mul(x, approximate)

    def rope_and_write_kv(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_cache: KVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        norm_eps: float = 1e-6,
    ) -> torch.Tensor:
        return rope_and_write_kv(
            qkv,
            cos_sin,
            kv_cache.k,
            kv_cache.v,
            inputs.positions,
            inputs.slots,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            norm_eps=norm_eps,
            k_scales=kv_cache.k_scales,
            v_scales=kv_cache.v_scales,
        )

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, kv_cache: KVCache, inputs: AttentionInputs) -> None:
        write_kv(k, v, kv_cache.k, kv_cache.v, inputs.slots, k_scales=kv_cache.k_scales, v_scales=kv_cache.v_scales)

    # attention

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: KVCache,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        options: dict[str, Any] = {
            "scale": spec.scale,
            "window": spec.sliding_window,
            "soft_cap": spec.logit_soft_cap,
            "sinks": sinks,
            "k_scales": kv_cache.k_scales,
            "v_scales": kv_cache.v_scales,
        }
        num_chunks = inputs.seq_lens.shape[0] - inputs.num_decodes
        num_chunk_tokens = q.shape[0] - inputs.num_decodes
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if num_chunks:
            chunks = (
                q[:num_chunk_tokens],
                kv_cache.k,
                kv_cache.v,
                inputs.block_tables[:num_chunks],
                inputs.seq_lens[:num_chunks],
                inputs.cu_seqlens_q[: num_chunks + 1],
            )
            if self._is_batch_invariant:
                positions = inputs.positions[:num_chunk_tokens]
                options |= {"out": out[:num_chunk_tokens]}
                invariant_attention(*chunks, positions, max_seq_len=inputs.max_seq_len, **options)
            else:
                prefill_attention(*chunks, **options | {"out": out[:num_chunk_tokens]})
        if inputs.num_decodes:
            decode_attention(
                q[num_chunk_tokens:],
                kv_cache.k,
                kv_cache.v,
                inputs.block_tables[num_chunks:],
                inputs.seq_lens[num_chunks:],
                max_seq_len=inputs.max_seq_len,
                plan=self._plan_of(inputs) if spec.sliding_window is None else None,
                **options | {"out": out[num_chunk_tokens:]},
            )
        return out

    def _plan_of(self, inputs: AttentionInputs) -> WorkPlan | None:
        """Made by the first layer of a step that needs it, and kept for the others."""
        is_short = inputs.max_seq_len <= SPLIT
        if inputs.total_seq_len is None or is_short or inputs.num_decodes > MAX_PLAN_ROWS:
            return None
        if self._planned is None or self._planned[0] is not inputs:
            seq_lens = inputs.seq_lens[inputs.seq_lens.shape[0] - inputs.num_decodes :]
            self._planned = inputs, plan_work(seq_lens, num_work_items(inputs.num_decodes, inputs.total_seq_len))
        return self._planned[1]

    # memory

    def allocate_kv(
        self, num_layers: int, num_blocks: int, block_size: int, spec: list[AttentionSpec]
    ) -> list[KVCache]:
        return [
            cuda_kv.allocate(num_blocks, block_size, layer, dtype=self._kv_dtype, device=self.device)
            for layer in spec[:num_layers]
        ]

    def kv_bytes_per_block(self, block_size: int, spec: list[AttentionSpec]) -> int:
        return sum(cuda_kv.bytes_per_block(block_size, layer, dtype=self._kv_dtype) for layer in spec)

    def available_memory_bytes(self) -> int:
        if self.device.type == "cpu":
            return available_memory_bytes()
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)

    def kv_budget_bytes(self, utilization: float, step_bytes: int | None = None) -> int:
        if self.device.type == "cpu":
            return kv_budget_bytes()
        _, total = torch.cuda.mem_get_info(self.device)
        kept = int((1.0 - utilization) * total) + (_UNMEASURED_STEP_BYTES if step_bytes is None else step_bytes)
        return max(0, self.available_memory_bytes() - kept)

    def peak_bytes(self, run: Callable[[], Any]) -> int | None:
        if self.device.type == "cpu":
            return None
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        run()
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        torch.cuda.empty_cache()  # the pool takes its place
        return peak

    def graph_bytes(self, max_num_seqs: int) -> int:
        return 0 if self.device.type == "cpu" else expected_graphs(max_num_seqs) * GRAPH_BYTES

    def release_memory(self) -> None:
        if self.device.type != "cpu":
            torch.cuda.empty_cache()

    @property
    def default_max_num_seqs(self) -> int:
        return 256  # 184 rows turn the GEMMs of an H200 compute-bound

    @property
    def default_max_num_batched_tokens(self) -> int:
        return 8192

    # execution

    def upload(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu" or not tensor.numel():
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def download(self, tensor: torch.Tensor) -> Download:
        """Start a copy to the host. Reading it waits for what was launched before, and for nothing launched after."""
        if self.device.type == "cpu":
            return CudaDownload(tensor, None)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return CudaDownload(host, done)

    def capture(self, forward: Callable[..., Any], *, pads: Mapping[str, int] | None = None) -> Callable[..., Any]:
        if self.device.type == "cpu":
            return forward
        if self._capture is None:
            self._capture = CudaCapture()
        return StepGraphs(forward, self._capture, device=self.device, split_tokens=SPLIT, pads=pads)

    @property
    def sample_op(self) -> SampleOp | None:
        # under the interpreter torch is the faster of the two, and draws as the CPU does
        return None if self.device.type == "cpu" else sample

    @property
    def steps_ahead(self) -> int:
        return 0 if self.device.type == "cpu" else 1

    @property
    def step_shape(self) -> str:
        return "mixed" if self.device.type == "cpu" else "measured"
