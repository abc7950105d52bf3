"""Token ids of a prompt: are they ids, do they exist, do they fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offgen.records import RowError


def read_token_ids(value: Any) -> list[int] | RowError:
    """A row's list of token ids as Python ints."""
    convert = getattr(value, "tolist", None)
    value = convert() if convert is not None else value
    if value is None:
        return RowError("bad_row", "the token ids are null")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return RowError("bad_row", f"the token ids must be a list of integers, not {type(value).__name__}")
    for place, token_id in enumerate(value):
        if type(token_id) is not int:
            return RowError("bad_row", f"token id {place} must be an integer, not {_show(token_id)}")
    return list(value)


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> RowError | None:
    """None if the model has a row for each id."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return None
    place, token_id = next((place, one) for place, one in enumerate(token_ids) if not 0 <= one < vocab_size)
    return RowError(
        "token_out_of_range", f"token id {token_id} at place {place} is not in 0 .. {vocab_size - 1}, the model's ids"
    )


def without_double_bos(token_ids: list[int], bos_id: int | None) -> list[int]:
    """One BOS where a text brought its own and the tokenizer put another before it."""
    first = 0
    while first + 1 < len(token_ids) and token_ids[first] == token_ids[first + 1] == bos_id:
        first += 1
    return token_ids[first:]


def _show(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
