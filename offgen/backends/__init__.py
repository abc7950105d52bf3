"""Everything that depends on the device: one contract (base), one file per device."""

from offgen.backends.base import AttentionInputs, AttentionSpec, Backend, KVCache, Linear
from offgen.backends.choice import open_backend

__all__ = ["AttentionInputs", "AttentionSpec", "Backend", "KVCache", "Linear", "open_backend"]
