"""Lets the GPU backend run on CPU tensors, under Triton's interpreter: slow, for tests of the whole engine."""

from __future__ import annotations

import os
import sys

from offgen.errors import UsageError


def use_interpreter() -> None:
    """Must come before anything imports triton, which decides then whether kernels are compiled or interpreted."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    if "triton" in sys.modules:
        raise UsageError("triton was imported before its interpreter was asked for", hint="TRITON_INTERPRET=1 offgen …")
    os.environ["TRITON_INTERPRET"] = "1"
