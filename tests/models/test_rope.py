"""Rotations against transformers: frequencies, attention factor and the table itself, near and far."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from offgen.errors import UsageError
from offgen.models.rope import cos_sin_table, frequencies, rope_config, rope_limit

POSITIONS = [0, 1, 1000, 8000, 20000]
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 32768}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": YARN,
    "yarn attention_factor": {**YARN, "attention_factor": 0.7},
    "yarn mscale": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0},
    "yarn mscale alone": {**YARN, "mscale": 0.707},
    "yarn not truncated": {**YARN, "truncate": False, "beta_fast": 20, "beta_slow": 2},
    "yarn factor null": {**YARN, "factor": None},
    "yarn implied original": {"rope_type": "yarn", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("form", ["new", "old", "old with type", "both"])
def test_rotation_equals_transformers(name: str, form: str) -> None:
    scaling, theta = SCALINGS[name], 500000.0
    old = dict(scaling)
    if form == "old with type":
        old["type"] = old.pop("rope_type")
    values: dict[str, Any] = {
        "new": {"rope_parameters": {**scaling, "rope_theta": theta}},
        "old": {"rope_theta": theta, "rope_scaling": old},
        "old with type": {"rope_theta": theta, "rope_scaling": old},
        "both": {"rope_theta": theta, "rope_scaling": old, "rope_parameters": {**scaling, "rope_theta": theta}},
    }[form]
    oracle = LlamaRotaryEmbedding(LlamaConfig.from_dict({**SIZES, **_copy(values)}))
    rope = rope_config({**SIZES, **values}, head_dim=16)
    found = frequencies(rope)
    torch.testing.assert_close(found.inv_freq, oracle.inv_freq, rtol=0, atol=0)
    assert found.attention_factor == oracle.attention_scaling
    _assert_table_equals(rope, oracle)


def test_theta_of_the_scaling_dictionary_is_overridden_by_no_default() -> None:
    """Only `rope_scaling` given beside new-style parameters: transformers lets it replace them, theta included."""
    values = {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }
    oracle = LlamaRotaryEmbedding(LlamaConfig.from_dict({**SIZES, **_copy(values)}))
    torch.testing.assert_close(frequencies(rope_config({**SIZES, **values}, head_dim=16)).inv_freq, oracle.inv_freq)


@pytest.mark.parametrize("length", [4096, 4097, 20000])
@pytest.mark.parametrize("extra", [{}, {"attention_factor": 1.3}, {"factor": 16.0}])
def test_longrope_switches_its_factors_at_the_original_length(length: int, extra: dict[str, Any]) -> None:
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + 0.5 * i for i in range(8)],
        "rope_theta": 10000.0,
        **extra,
    }
    config = {**SIZES, "original_max_position_embeddings": 4096, "rope_parameters": scaling}
    oracle = Phi3RotaryEmbedding(Phi3Config(**_copy(config)))
    cos, sin = oracle(torch.zeros(1), torch.tensor([[0, length - 1]]))
    rope = rope_config(config, head_dim=16, partial=1.0)
    table = cos_sin_table(rope, length)
    torch.testing.assert_close(table[length - 1, :8], cos[0, 1, :8], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(table[length - 1, 8:], sin[0, 1, :8], rtol=1e-6, atol=1e-6)
    assert rope_limit(rope)[0] == 4096


def test_dynamic_beyond_its_context_is_refused() -> None:
    rope = rope_config({**SIZES, "rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, head_dim=16)
    cos_sin_table(rope, 100)
    with pytest.raises(UsageError, match="dynamic rope"):
        cos_sin_table(rope, SIZES["max_position_embeddings"] + 1)


def test_dynamic_frequencies_of_a_longer_row_equal_transformers() -> None:
    values = {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    oracle = LlamaRotaryEmbedding(LlamaConfig.from_dict({**SIZES, **_copy(values)}))
    oracle(torch.zeros(1), torch.tensor([[40000]]))
    found = frequencies(rope_config({**SIZES, **values}, head_dim=16), length=40001)
    torch.testing.assert_close(found.inv_freq, oracle.inv_freq)


@pytest.mark.parametrize("kind", ["ntk", "su", "yarn2", "mrope"])
def test_unknown_type_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UsageError, match=f"rope_type `{kind}` is unknown"):
        rope_config({**SIZES, "rope_theta": 1e4, "rope_scaling": {"type": kind, "factor": 2.0}}, head_dim=16)


def test_missing_numbers_are_named() -> None:
    with pytest.raises(UsageError, match="llama3` needs `low_freq_factor"):
        rope_config({**SIZES, "rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, head_dim=16)


def test_layer_types_have_rotations_of_their_own() -> None:
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    ropes = {kind: rope_config({**SIZES, "rope_parameters": nested}, head_dim=16, layer_type=kind) for kind in nested}
    assert ropes["full_attention"].parameters["factor"] == 8.0
    assert ropes["sliding_attention"].parameters["rope_theta"] == 1e4
    with pytest.raises(UsageError, match="layer type"):
        rope_config({**SIZES, "rope_parameters": nested}, head_dim=16)


def _copy(values: Any) -> Any:
    """Configuration classes write into what they are given."""
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in values.items()}


def _assert_table_equals(rope: Any, oracle: Any) -> None:
    cos, sin = oracle(torch.zeros(1), torch.tensor([POSITIONS]))
    table, half = cos_sin_table(rope, POSITIONS[-1] + 1)[POSITIONS], rope.dim // 2
    torch.testing.assert_close(table[:, :half], cos[0, :, :half], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(table[:, half:], sin[0, :, :half], rtol=1e-6, atol=1e-6)
