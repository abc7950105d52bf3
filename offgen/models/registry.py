"""Which builder serves which architecture, by the name in config.json. One line a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from offgen.models import gemma, granite, llama, olmo, phi3, qwen, smollm3
from offgen.models.builder import Builder
from offgen.models.layers import Decoder

NATIVE: Mapping[str, Callable[[Builder], Decoder]] = {
    "LlamaForCausalLM": llama.build,
    "MistralForCausalLM": llama.build_mistral,
    "Qwen2ForCausalLM": qwen.build_qwen2,
    "Qwen3ForCausalLM": qwen.build_qwen3,
    "GemmaForCausalLM": gemma.build_gemma,
    "Gemma2ForCausalLM": gemma.build_gemma2,
    "Gemma3ForCausalLM": gemma.build_gemma3,
    "Phi3ForCausalLM": phi3.build,
    "GraniteForCausalLM": granite.build,
    "Olmo2ForCausalLM": olmo.build_olmo2,
    "Olmo3ForCausalLM": olmo.build_olmo3,
    "SmolLM3ForCausalLM": smollm3.build,
}
