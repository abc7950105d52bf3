"""Which backend serves a job. Knows names and their conditions; imports a backend only when it is chosen."""

from __future__ import annotations

import torch

from offgen.backends.base import Backend
from offgen.errors import UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_backend(
    device: str = "auto",
    *,
    dtype: str = "auto",
    threads: int | None = None,
    quantization: str = "none",
    kv_cache_dtype: str = "auto",
    attention_backend: str = "auto",
    batch_invariant: bool | None = None,
) -> Backend:
    """Build the backend for a device, with its dtype and threads.

    device             auto (a GPU if torch sees one), cpu, cuda, cuda:N
    dtype              auto: float32 on a CPU, bfloat16 on a GPU; or a torch name
    threads            processors to use; None: all this process is granted (CPU only)
    quantization       none, int8, fp8
    kv_cache_dtype     auto (the dtype; int8 with int8 weights on a CPU), bf16, int8, fp8
    attention_backend  auto, cpu, triton, or torch: plain torch operations on any device, slow, the oracle of the tests
    batch_invariant    a row's bits never depend on its neighbours (always true on a CPU; None: not on a GPU)

    Raises UsageError for what the device cannot do.
    """
    where = _device(device)
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown", hint=f"one of auto, {', '.join(DTYPES)}")
    if attention_backend == "torch":
        from offgen.backends.torch_ops import TorchBackend

        return TorchBackend(
            where,
            dtype=DTYPES.get(dtype, torch.float32 if where.type == "cpu" else torch.bfloat16),
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
        )
    if where.type == "cuda" or attention_backend == "triton":
        if attention_backend not in ("auto", "triton"):
            raise UsageError(f"attention backend {attention_backend!r} does not run on {where}", hint="triton")
        return _triton(where, dtype, quantization, kv_cache_dtype, batch_invariant=bool(batch_invariant))
    if attention_backend not in ("auto", "cpu"):
        raise UsageError(f"attention backend {attention_backend!r} does not run on the CPU", hint="cpu")
    from offgen.backends import compile_ahead
    from offgen.backends.compile_cache import use_compile_cache

    compile_ahead.finish()
    use_compile_cache()  # before the import: it says where compiled kernels are looked for
    from offgen.backends.cpu import CpuBackend

    return CpuBackend(
        dtype=DTYPES.get(dtype, torch.float32),
        threads=threads,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
    )


def _triton(
    where: torch.device, dtype: str, quantization: str, kv_cache_dtype: str, *, batch_invariant: bool
) -> Backend:
    """The GPU backend; on CPU tensors under Triton's interpreter, for tests."""
    if where.type == "cpu":
        from offgen.backends.interpreter import use_interpreter

        use_interpreter()
    from offgen.backends.cuda import CudaBackend

    return CudaBackend(
        where,
        dtype=DTYPES.get(dtype, torch.float32 if where.type == "cpu" else torch.bfloat16),
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        batch_invariant=batch_invariant,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(name)
    except RuntimeError:
        where = torch.device("meta")
    if where.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is unknown", hint="one of auto, cpu, cuda")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: torch sees no GPU", hint="--device cpu")
    return where
