"""Tiny random models on disk and their transformers twins as oracles."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib does not; for paged_rows and oracle

import pytest
import torch

from offgen.backends import Backend
from offgen.backends.torch_ops import TorchBackend


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backend() -> Backend:
    return TorchBackend(torch.device("cpu"), dtype=torch.float32, quantization="none", kv_cache_dtype="auto")
