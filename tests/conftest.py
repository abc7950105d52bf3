"""Where there is no GPU, Triton kernels run as Python on CPU tensors: this is set before anything imports triton."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
