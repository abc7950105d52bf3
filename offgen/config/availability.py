"""The one table of what docs/cli.md promises and is not built yet: refused, never ignored.

Delete a line as it gets built.
"""

from __future__ import annotations

from typing import Any

KNOWN_QUANTIZATIONS = ("none", "int8", "fp8", "int4", "awq", "gptq", "gguf", "bitsandbytes", "compressed-tensors")

# option: the values that are not built; None: no value is
NOT_BUILT: dict[str, frozenset[str] | None] = {
    "json_schema": None,
    "regex": None,
    "grammar": None,
    "choice": None,
    "lora": None,
    "quantization": frozenset(KNOWN_QUANTIZATIONS) - {"none", "int8", "fp8"},
}


def is_built(name: str, value: Any) -> bool:
    """False for an option, or a value of one, that must be refused."""
    if name not in NOT_BUILT or value is None:
        return True
    missing = NOT_BUILT[name]
    return missing is not None and value not in missing
