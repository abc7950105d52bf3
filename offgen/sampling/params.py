"""What a user may ask of sampling, one frozen dataclass per row. Pure: knows no tensor.

Names and meanings are those of vLLM's SamplingParams.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

GREEDY_EPSILON = 1e-5  # a temperature below this is greedy: dividing by it would overflow float32
_INT32 = 2**31 - 1
_MAX_FLOAT = 3e38  # of float32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one row is sampled. `from_dict` builds and checks it from user input; each field's default is neutral."""

    n: int = 1
    max_tokens: int = 512
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = field(default=())  # bad_words as text/ tokenized them
    skip_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON


def from_dict(values: Mapping[str, Any], *, defaults: SamplingParams) -> SamplingParams:
    """The parameters that `values` names, over `defaults`.

    A value of None is unset. Numbers may be numpy's; a whole float counts as an int (a Parquet column with nulls makes
    one of it). Raises ValueError, in a plain sentence, for a name that is unknown or a value that makes no sense.
    """
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        check = _CHECKS.get(name)
        if check is None:
            _refuse_name(name, value)
            continue
        try:
            changes[name] = check(value)
        except ValueError as error:
            raise ValueError(f"`{name}` {error}") from None
    if "bad_words" in changes:
        changes["bad_words_token_ids"] = ()  # those of the defaults' words
    params = dataclasses.replace(defaults, **changes)
    if params.min_tokens > params.max_tokens:
        raise ValueError(f"`min_tokens` {params.min_tokens} is more than `max_tokens` {params.max_tokens}")
    return params


def _refuse_name(name: str, value: Any) -> None:
    """Raise for a name that is not ours, unless it asks for nothing."""
    if name in _NEUTRAL:
        if value == _NEUTRAL[name] or (isinstance(value, Iterable) and not list(value)):
            return
        raise ValueError(f"`{name}` is not available yet")
    close = get_close_matches(str(name), _CHECKS, n=1)
    hint = f": did you mean `{close[0]}`?" if close else ""
    raise ValueError(f"`{name}` is not a sampling parameter{hint}")


# Parameters of vLLM that are not built, and the value with which they change nothing.
_NEUTRAL: dict[str, Any] = {
    "json_schema": "",
    "regex": "",
    "grammar": "",
    "choice": (),
    "structured_outputs": {},
    "guided_decoding": {},
    "response_format": {},
    "allowed_token_ids": (),
    "include_stop_str_in_output": False,
    "spaces_between_special_tokens": True,
    "detokenize": True,
    "best_of": 1,
    "extra_args": {},
    "logits_processors": (),
    "truncate_prompt_tokens": -1,
}


def _int(minimum: int, maximum: int = _INT32) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        number = _number(value)
        if isinstance(number, float) and not number.is_integer():
            raise ValueError(f"must be a whole number, not {number:g}")
        number = int(number)
        if not minimum <= number <= maximum:
            most = f" to {maximum}" if maximum != _INT32 or number > maximum else " or more"
            raise ValueError(f"must be {minimum}{most}, not {number}")
        return number

    return check


def _float(
    minimum: float = -math.inf, maximum: float = math.inf, *, above: float | None = None
) -> Callable[[Any], float]:
    lowest = f"above {above:g}" if above is not None else f"at least {minimum:g}"
    limits = lowest if maximum == math.inf else f"{lowest} and at most {maximum:g}"

    def check(value: Any) -> float:
        number = _number(value)
        if not abs(number) <= _MAX_FLOAT:  # a NaN too
            raise ValueError(f"must be a finite number, not {_show(number)}")
        if not minimum <= number <= maximum or (above is not None and number <= above):
            raise ValueError(f"must be {limits}, not {number:g}")
        return float(number)

    return check


def _number(value: Any) -> int | float:
    """A Python number from Python's, numpy's, Arrow's or a decimal one. A bool is not a number here."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise ValueError(f"must be a number, not {_show(value)}")
    return operator.index(value) if isinstance(value, Integral) else float(value)


def _bool(value: Any) -> bool:
    value = _plain(value)
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_show(value)}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    """One text or a list of them."""
    texts = [value] if isinstance(value, str) else _items(value, "a text or a list of texts")
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"must be a text or a list of texts, not a list with {_show(text)}")
        if not text:
            raise ValueError("must not hold an empty text")
    return tuple(dict.fromkeys(texts))


def _token_ids(value: Any) -> tuple[int, ...]:
    check = _int(0)
    return tuple(dict.fromkeys(check(one) for one in _items(value, "a list of token ids")))


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """{"id": bias}, or the pairs that an Arrow map gives. A bias of None is unset: structs share their keys."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("must be an object of token id to bias, not a text") from None
    what = "an object of token id to bias"
    pairs = value.items() if isinstance(value, Mapping) else _items(value, what)
    check_id, check_bias = _int(0), _float()
    result: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(f"must be {what}, not a list with {_show(pair)}")
        token_id, bias = pair
        if isinstance(token_id, str):
            if not (token_id.isascii() and token_id.lstrip("-").isdigit()):
                raise ValueError(f"must name token ids, not {_show(token_id)}")
            token_id = int(token_id)
        if bias is not None:
            result[check_id(token_id)] = check_bias(bias)
    return tuple(sorted(result.items()))


def _items(value: Any, what: str) -> list[Any]:
    value = _plain(value)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"must be {what}, not {_show(value)}")
    return list(value)


def _plain(value: Any) -> Any:
    """A Python value from an Arrow or numpy scalar or array, which say so by `as_py` or `tolist`."""
    for name in ("as_py", "tolist"):
        convert = getattr(value, name, None)
        if convert is not None:
            return convert()
    return value


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "n": _int(1),
    "max_tokens": _int(1),
    "min_tokens": _int(0),
    "temperature": _float(0.0),
    "top_p": _float(maximum=1.0, above=0.0),
    "top_k": _int(-1),
    "min_p": _float(0.0, 1.0),
    "repetition_penalty": _float(above=0.0),
    "presence_penalty": _float(-2.0, 2.0),
    "frequency_penalty": _float(-2.0, 2.0),
    "stop": _texts,
    "stop_token_ids": _token_ids,
    "ignore_eos": _bool,
    "seed": _int(-(2**63), 2**63 - 1),
    "logprobs": _int(0),
    "prompt_logprobs": _int(0),
    "logit_bias": _logit_bias,
    "bad_words": _texts,
    "skip_special_tokens": _bool,
}
