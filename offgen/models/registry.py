"""Which builder serves which architecture, by the name in config.json. One line a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from offgen.models import llama, qwen
from offgen.models.builder import Builder
from offgen.models.layers import Decoder

NATIVE: Mapping[str, Callable[[Builder], Decoder]] = {
    "LlamaForCausalLM": llama.build,
    "MistralForCausalLM": llama.build_mistral,
    "Qwen2ForCausalLM": qwen.build_qwen2,
    "Qwen3ForCausalLM": qwen.build_qwen3,
}
