"""Rotary position embeddings: config.json to frequencies and cos/sin tables. Knows no model and no cache.

Every type gives the inverse frequencies and the attention factor that transformers gives (its modeling_rope_utils is
the oracle of the tests). An unknown type is refused.

Two types change with the length of a row, `dynamic` and `longrope`, and a paged cache keeps keys as they were rotated
once. `rope_limit` says up to which length they are constant, and that is where a model's context ends unless the user
asks for more: with longrope the long factors then hold for every row (as if each had grown long already), with dynamic
it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from offgen.errors import UsageError

SCALED_BY_LENGTH = ("llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One rotation: its type and numbers, head_dim and context length resolved.

    parameters   the standardized dictionary: rope_type, rope_theta, factor, …
    dim          values of a head that rotate
    """

    parameters: Mapping[str, Any]
    dim: int
    max_position_embeddings: int

    @property
    def rope_type(self) -> str:
        return str(self.parameters["rope_type"])

    @property
    def original_length(self) -> int:
        return int(self.parameters["original_max_position_embeddings"])


@dataclass(frozen=True, slots=True)
class Frequencies:
    inv_freq: torch.Tensor  # [dim / 2] float32
    attention_factor: float = field(default=1.0)


def rope_config(
    config: Mapping[str, Any],
    *,
    head_dim: int,
    layer_type: str | None = None,
    default_theta: float = 10_000.0,
    partial: float | None = None,
    scales_default_partially: bool = False,
) -> RopeConfig:
    """The rotation of a model, or of one layer type of it, from either generation of config.json keys.

    config                    config.json: `rope_parameters` (flat, or nested per layer type), or `rope_theta` with
                              `rope_scaling`; where both are given, `rope_scaling` wins, as in transformers
    partial                   the family's default for `partial_rotary_factor`
    scales_default_partially  whether the family rotates only that share of a head with rope_type `default` too
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if layer_type is not None and isinstance(given.get(layer_type), Mapping):
        given = given[layer_type]
    elif any(isinstance(value, Mapping) for value in given.values()):
        raise UsageError(f"config.json: rope_parameters has nothing for layer type `{layer_type}`")
    parameters = dict(given)
    kind = parameters.get("rope_type", parameters.get("type")) or "default"
    parameters["rope_type"] = kind
    theta = config.get("rope_theta")
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = default_theta if theta is None else theta
    share = config.get("partial_rotary_factor", partial)
    if share is not None:
        parameters.setdefault("partial_rotary_factor", share)
    return rope_of(parameters, config, head_dim=head_dim, scales_default_partially=scales_default_partially)


def rope_of(
    parameters: dict[str, Any], config: Mapping[str, Any], *, head_dim: int, scales_default_partially: bool = False
) -> RopeConfig:
    """The rotation of one dictionary of parameters, lengths filled in from the configuration."""
    kind = parameters["rope_type"]
    maximum = int(config["max_position_embeddings"])
    if kind in SCALED_BY_LENGTH:
        outside = config.get("original_max_position_embeddings")
        if outside is not None:
            parameters["original_max_position_embeddings"] = outside
        elif parameters.get("original_max_position_embeddings") is None:
            parameters["original_max_position_embeddings"] = maximum
    rotated = 1.0
    if kind != "default" or scales_default_partially:
        rotated = float(parameters.get("partial_rotary_factor") or 1.0)
    checked = RopeConfig(parameters, int(head_dim * rotated), maximum)
    if kind not in _TYPES:
        raise UsageError(
            f"config.json: rope_type `{kind}` is unknown (known: {', '.join(sorted(_TYPES))})",
            hint="a wrong rotation gives fluent nonsense, so offgen does not guess",
        )
    _check_numbers(checked)
    return checked


def _check_numbers(rope: RopeConfig) -> None:
    required = {
        "linear": ("factor",),
        "dynamic": ("factor",),
        "yarn": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "longrope": ("short_factor", "long_factor"),
    }.get(rope.rope_type, ())
    for key in required:
        if key not in rope.parameters:
            raise UsageError(f"config.json: rope_type `{rope.rope_type}` needs `{key}`")
    if rope.rope_type == "longrope":
        for key in ("short_factor", "long_factor"):
            if len(rope.parameters[key]) != rope.dim // 2:
                raise UsageError(
                    f"config.json: `{key}` has {len(rope.parameters[key])} numbers, head_dim asks for {rope.dim // 2}"
                )


def frequencies(rope: RopeConfig, *, length: int | None = None) -> Frequencies:
    """Inverse frequencies and attention factor; `length` of the row matters to `dynamic` and `longrope` only."""
    return _TYPES[rope.rope_type](rope, length)


def rope_limit(rope: RopeConfig) -> tuple[int, str | None]:
    """The longest context in which the rotation is the same for rows of all lengths, and why it ends there."""
    if rope.rope_type == "longrope" and rope.original_length < rope.max_position_embeddings:
        return rope.original_length, (
            f"longrope rotates rows of up to {rope.original_length} tokens by other factors than longer rows, and "
            "cached keys keep their rotation"
        )
    if rope.rope_type == "dynamic":
        return rope.max_position_embeddings, (
            f"dynamic rope changes its frequencies with every token beyond {rope.max_position_embeddings}, and cached "
            "keys keep their rotation"
        )
    return rope.max_position_embeddings, None


def cos_sin_table(rope: RopeConfig, num_positions: int) -> torch.Tensor:
    """[num_positions, dim] float32: cosines of the dim / 2 frequencies, then sines, both times the attention factor.

    Raises UsageError if the rotation cannot reach that far in a paged cache.
    """
    limit, reason = rope_limit(rope)
    if num_positions > limit and rope.rope_type == "dynamic":
        raise UsageError(
            f"a context of {num_positions} tokens is not available: {reason}", hint=f"--max-model-len {limit}"
        )
    found = frequencies(rope, length=num_positions)
    angles = torch.arange(num_positions, dtype=torch.float32).unsqueeze(1) * found.inv_freq.to(torch.float32)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * found.attention_factor


def no_rotation(num_positions: int) -> torch.Tensor:
    """The table of a layer that rotates nothing."""
    return torch.zeros(num_positions, 0)


def _exponents(rope: RopeConfig) -> torch.Tensor:
    return torch.arange(0, rope.dim, 2, dtype=torch.int64).to(torch.float32) / rope.dim


def _default(rope: RopeConfig, length: int | None) -> Frequencies:
    return Frequencies(1.0 / (rope.parameters["rope_theta"] ** _exponents(rope)))


def _linear(rope: RopeConfig, length: int | None) -> Frequencies:
    return Frequencies(_default(rope, length).inv_freq / rope.parameters["factor"])


def _dynamic(rope: RopeConfig, length: int | None) -> Frequencies:
    """Source: NTK-aware scaling that grows with the row."""
    maximum = rope.max_position_embeddings
    factor, longest = rope.parameters["factor"], max(length or maximum, maximum)
    base = rope.parameters["rope_theta"] * ((factor * longest / maximum) - (factor - 1)) ** (rope.dim / (rope.dim - 2))
    return Frequencies(1.0 / (base ** _exponents(rope)))


def _llama3(rope: RopeConfig, length: int | None) -> Frequencies:
    """Source: Llama 3.1. Long waves are stretched by `factor`, short ones kept, those between blended."""
    values = rope.parameters
    inv_freq = _default(rope, length).inv_freq
    low, high, factor = values["low_freq_factor"], values["high_freq_factor"], values["factor"]
    wavelength = 2 * math.pi / inv_freq
    stretched = torch.where(wavelength > rope.original_length / low, inv_freq / factor, inv_freq)
    smooth = (rope.original_length / wavelength - low) / (high - low)
    blended = (1 - smooth) * stretched / factor + smooth * stretched
    is_between = (wavelength >= rope.original_length / high) & (wavelength <= rope.original_length / low)
    return Frequencies(torch.where(is_between, blended, stretched))


def _yarn(rope: RopeConfig, length: int | None) -> Frequencies:
    """Source: Peng et al. 2023, with DeepSeek's mscale."""
    values = rope.parameters
    factor = values["factor"]
    if factor is None:
        factor = rope.max_position_embeddings / rope.original_length
    low, high = _yarn_range(rope)
    waves = values["rope_theta"] ** _exponents(rope)
    if low == high:
        high += 0.001  # a step instead of a ramp
    kept = 1 - ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inv_freq = 1.0 / (factor * waves) * (1 - kept) + 1.0 / waves * kept
    return Frequencies(inv_freq, _yarn_attention_factor(values, factor))


def _yarn_range(rope: RopeConfig) -> tuple[float, float]:
    values = rope.parameters

    def dimension_of(num_rotations: float) -> float:
        reach = rope.original_length / (num_rotations * 2 * math.pi)
        return rope.dim * math.log(reach) / (2 * math.log(values["rope_theta"]))

    low, high = dimension_of(values.get("beta_fast") or 32), dimension_of(values.get("beta_slow") or 1)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, rope.dim - 1)


def _yarn_attention_factor(values: Mapping[str, Any], factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if values.get("mscale") and values.get("mscale_all_dim"):
        return mscale(values["mscale"]) / mscale(values["mscale_all_dim"])
    return mscale(1.0)


def _longrope(rope: RopeConfig, length: int | None) -> Frequencies:
    """Source: LongRoPE, as in Phi-3: one list of factors for short rows, another for long ones."""
    values = rope.parameters
    is_long = length is not None and length > rope.original_length
    stretch = torch.tensor(values["long_factor" if is_long else "short_factor"], dtype=torch.float32)
    inv_freq = 1.0 / (stretch * values["rope_theta"] ** _exponents(rope))
    attention_factor = values.get("attention_factor")
    if attention_factor is None:
        factor = values.get("factor")
        if factor is None:
            factor = rope.max_position_embeddings / rope.original_length
        attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(rope.original_length))
    return Frequencies(inv_freq, float(attention_factor))


_TYPES = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
