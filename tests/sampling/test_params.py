"""What a user may write, and what is refused in words."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from offgen.sampling.params import SamplingParams, from_dict

DEFAULTS = SamplingParams()


def test_a_value_is_taken_over_the_default_and_a_null_is_not() -> None:
    defaults = SamplingParams(temperature=0.5, top_k=3)
    params = from_dict({"temperature": 0.9, "top_k": None}, defaults=defaults)
    assert (params.temperature, params.top_k) == (0.9, 3)


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ({"stop": "a"}, "stop", ("a",)),
        ({"stop": ["a", "b", "a"]}, "stop", ("a", "b")),
        ({"stop": []}, "stop", ()),
        ({"stop": np.array(["a", "b"])}, "stop", ("a", "b")),
        ({"stop_token_ids": np.array([3, 4])}, "stop_token_ids", (3, 4)),
        ({"logit_bias": {"5": 1, "7": None, "2": -3.5}}, "logit_bias", ((2, -3.5), (5, 1.0))),
        ({"logit_bias": {5: 1}}, "logit_bias", ((5, 1.0),)),
        ({"logit_bias": [("5", 1.0)]}, "logit_bias", ((5, 1.0),)),
        ({"logit_bias": '{"5": 1}'}, "logit_bias", ((5, 1.0),)),
        ({"logit_bias": {}}, "logit_bias", ()),
        ({"max_tokens": 7.0}, "max_tokens", 7),
        ({"max_tokens": np.int32(7)}, "max_tokens", 7),
        ({"max_tokens": Decimal("7")}, "max_tokens", 7),
        ({"max_tokens": pa.scalar(7)}, "max_tokens", 7),
        ({"temperature": np.float32(0.5)}, "temperature", 0.5),
        ({"temperature": 1}, "temperature", 1.0),
        ({"ignore_eos": np.bool_(True)}, "ignore_eos", True),
        ({"top_k": -1}, "top_k", -1),
        ({"seed": -(2**63)}, "seed", -(2**63)),
    ],
)
def test_good_values_come_out_as_plain_python(values: dict[str, Any], name: str, expected: Any) -> None:
    found = getattr(from_dict(values, defaults=DEFAULTS), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": True},
        {"max_tokens": 5.5},
        {"max_tokens": "5"},
        {"max_tokens": float("inf")},
        {"max_tokens": 2**31},
        {"max_tokens": [5]},
        {"min_tokens": -1},
        {"min_tokens": 513},
        {"max_tokens": 3, "min_tokens": 4},
        {"n": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": False},
        {"temperature": 10**400},
        {"temperature": "0.7"},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": float("nan")},
        {"top_k": -2},
        {"top_k": 1.5},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": [1]},
        {"stop": 1},
        {"stop": {"a": 1}},
        {"stop": b"a"},
        {"stop_token_ids": 5},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": [1.5]},
        {"stop_token_ids": [None]},
        {"stop_token_ids": "12"},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"1": "a"}},
        {"logit_bias": {"1": float("inf")}},
        {"logit_bias": {"1": True}},
        {"logit_bias": [1]},
        {"logit_bias": "x"},
        {"logprobs": -1},
        {"logprobs": True},
        {"prompt_logprobs": -1},
        {"ignore_eos": 1},
        {"ignore_eos": "true"},
        {"seed": 2**63},
        {"seed": 1.5},
        {"bad_words": [None]},
        {"temprature": 1},
        {"bad_words_token_ids": [[1]]},
        {"best_of": 2},
        {"regex": "a+"},
        {"json_schema": {"type": "object"}},
        {"structured_outputs": {"choice": ["a"]}},
        {7: 1},
    ],
)
def test_senseless_values_and_unknown_names_are_refused_by_name(values: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(reversed(values))}`"):
        from_dict(values, defaults=DEFAULTS)


def test_a_mistyped_name_gets_a_hint() -> None:
    with pytest.raises(ValueError, match="did you mean `temperature`"):
        from_dict({"temprature": 1}, defaults=DEFAULTS)


def test_what_is_not_built_may_be_named_when_it_asks_for_nothing() -> None:
    nothing = {"best_of": 1, "detokenize": True, "regex": "", "choice": [], "structured_outputs": {}, "grammar": None}
    assert from_dict(nothing, defaults=DEFAULTS) == DEFAULTS
    with pytest.raises(ValueError, match="not available yet"):
        from_dict({"choice": ["a"]}, defaults=DEFAULTS)


def test_new_bad_words_do_not_keep_the_ids_of_the_old() -> None:
    defaults = SamplingParams(bad_words=("a",), bad_words_token_ids=((1,),))
    assert from_dict({"bad_words": "b"}, defaults=defaults).bad_words_token_ids == ()
    assert from_dict({"top_k": 2}, defaults=defaults).bad_words_token_ids == ((1,),)


def test_tiny_temperatures_are_greedy() -> None:
    assert [SamplingParams(temperature=t).is_greedy for t in (0.0, 1e-12, 9e-6, 1e-5, 1e-3)] == [True] * 3 + [False] * 2
