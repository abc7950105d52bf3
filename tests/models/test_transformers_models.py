"""Every causal LM of transformers: the same tokens over pages, or refused in a sentence before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import paged_rows
import pytest
import tiny_models
import torch
import transformers

from offgen.backends import Backend
from offgen.errors import UsageError
from offgen.models import load_config, load_model

# learned positions, latent keys, sinks, windows …
SAMPLE = ("gpt2", "opt", "deepseek_v3", "gpt_oss", "cohere2", "stablelm")
SERVED = tiny_models.names("""
    afmoe apertus apertus1p5_text arcee aria_text axk1 beam bert bert-generation biogpt bitnet camembert codegen cohere
    cohere2 cohere2_moe ctrl cwm data2vec-text deepseek_v2 deepseek_v3 diffllama dots1 electra ernie ernie4_5
    ernie4_5_moe exaone exaone4 exaone_moe flex_olmo flint gemma gemma2 gemma3_text glm glm4 glm4_moe glm4_moe_lite
    gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoehybrid
    granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2
    jetmoe kolibri1 laguna llama llama4_text mellum mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral
    mixtral modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe
    qwen3 qwen3_moe roberta roberta-prelayernorm roc_bert sarvam_mla sarvam_moe seed_oss smollm3 solar_open stablelm
    starcoder2 vaultgemma whisper
""")
# these keep or compute something that pages of keys and values do not hold
REFUSED = tiny_models.names("""
    axk2 bart big_bird bigbird_pegasus blenderbot blenderbot-small bloom cpmant deepseek_v32 deepseek_v4 doge falcon
    falcon_h1 falcon_mamba glm_moe_dsa gpt_neo gpt_neox_japanese hy_v4 inkling_text lfm3 mamba mamba2 marian mbart
    megatron-bert moshi mpt openai-gpt pegasus plbart prophetnet qwen3_next recurrent_gemma rembert roformer rwkv xglm
""")
NEW_TOKENS = 6


def _params(kinds: list[str], sample: tuple[str, ...]) -> list[Any]:
    return [pytest.param(kind, marks=() if kind in sample else pytest.mark.slow) for kind in kinds]


@pytest.mark.parametrize("kind", _params(SERVED, SAMPLE))
def test_served_model_matches_generate_token_for_token(kind: str, backend: Backend, tmp_path: Path) -> None:
    twin = tiny_models.model_of(kind)
    prompts = oracle.prompts(tiny_models.VOCAB)
    expected = [oracle.greedy(twin, prompt, NEW_TOKENS) for prompt in prompts]
    model = load_model(oracle.save(twin, tmp_path), backend, model_impl="transformers")
    for chunk in (10_000, 4):
        assert paged_rows.generate(model, backend, prompts, max_tokens=NEW_TOKENS, chunk=chunk) == expected


@pytest.mark.parametrize("kind", _params(REFUSED, ("bloom", "mamba", "deepseek_v32")))
def test_refused_model_says_why_in_a_sentence(kind: str, backend: Backend, tmp_path: Path) -> None:
    folder = oracle.save(tiny_models.model_of(kind), tmp_path)
    with pytest.raises(UsageError, match=r"not supported|does not run over paged attention"):
        load_model(folder, backend)


@pytest.mark.slow
def test_no_kind_is_silently_wrong(backend: Backend, tmp_path: Path) -> None:
    """Kinds in neither list (a newer transformers has more) either match or are refused."""
    wrong = []
    for kind in sorted(set(tiny_models.kinds()) - set(SERVED) - set(REFUSED) - set(tiny_models.NO_TINY_MODEL)):
        try:
            twin = tiny_models.model_of(kind)
            prompts = oracle.prompts(tiny_models.VOCAB)
            expected = [oracle.greedy(twin, prompt, NEW_TOKENS) for prompt in prompts]
            folder = oracle.save(twin, tmp_path / kind)
        except Exception:
            continue  # no oracle
        try:
            model = load_model(folder, backend, model_impl="transformers")
        except UsageError:
            continue
        if paged_rows.generate(model, backend, prompts, max_tokens=NEW_TOKENS, chunk=4) != expected:
            wrong.append(kind)
    assert wrong == []


@pytest.mark.parametrize(
    "kind, options",
    [
        ("mistral", {"sliding_window": 4, "head_dim": 20, "num_key_value_heads": 1}),
        ("gemma2", {"attn_logit_softcapping": 1.5, "tie_word_embeddings": True, "query_pre_attn_scalar": 30}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    ],
)
def test_both_implementations_agree(kind: str, options: dict[str, Any], backend: Backend, tmp_path: Path) -> None:
    folder = oracle.save(tiny_models.model_of(kind, **options), tmp_path)
    prompts = oracle.prompts(tiny_models.VOCAB)
    native, other = (load_model(folder, backend, model_impl=impl) for impl in ("native", "transformers"))
    assert native.config.attention == other.config.attention == load_config(folder, model_impl="transformers").attention
    assert paged_rows.generate(native, backend, prompts, max_tokens=5, chunk=3) == paged_rows.generate(
        other, backend, prompts, max_tokens=5, chunk=3
    )


def test_linears_are_packed_by_the_backend(backend: Backend, tmp_path: Path) -> None:
    folder = oracle.save(tiny_models.model_of("gpt_neox"), tmp_path)
    packed: list[tuple[int, ...]] = []

    class Counting(type(backend)):  # type: ignore[misc]
        def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            packed.append(tuple(weight.shape))
            return super().linear(weight, bias)

    counting = Counting(torch.device("cpu"), dtype=torch.float32, quantization="none", kv_cache_dtype="auto")
    load_model(folder, counting)
    assert len(packed) == 3 * 4 + 1  # four a layer, and the head


def test_longrope_beyond_its_original_length_is_a_stated_limit(backend: Backend, tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    twin = tiny_models.model_of("llama", rope_parameters={**rope, "original_max_position_embeddings": 64})
    folder = oracle.save(twin, tmp_path)
    for impl in ("native", "transformers"):
        config = load_model(folder, backend, model_impl=impl).config
        assert config.max_position_embeddings == 64 and "longrope" in (config.context_limit_reason or "")
    prompt = oracle.prompts(tiny_models.VOCAB, (80,))
    expected = [oracle.greedy(twin, prompt[0], 4)]
    for impl in ("native", "transformers"):
        model = load_model(folder, backend, model_impl=impl, max_model_len=100)
        assert paged_rows.generate(model, backend, prompt, max_tokens=4, chunk=32) == expected


def test_loading_leaves_transformers_logging_as_it_was(backend: Backend, tmp_path: Path) -> None:
    before = transformers.logging.get_verbosity()
    load_model(oracle.save(tiny_models.model_of("gpt2"), tmp_path), backend)
    assert transformers.logging.get_verbosity() == before
