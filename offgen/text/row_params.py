"""Each row's sampling parameters: the job's, under what the row says itself, checked against the model's vocabulary."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from offgen.errors import UsageError
from offgen.records import RowError
from offgen.sampling.params import SamplingParams, from_dict
from offgen.text.tokenizer import Tokenizer


class RowParams:
    """Reads the parameters column. Raises UsageError if the job's own parameters name ids that the model has not."""

    def __init__(self, tokenizer: Tokenizer, defaults: SamplingParams, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._bad_words: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        try:
            self.defaults = self._complete(defaults)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def read(self, value: Any) -> SamplingParams | RowError:
        """value: what the column holds: null, a struct, or the same as JSON text."""
        if value is None:
            return self.defaults
        try:
            named = _as_mapping(value)
            params = from_dict(named, defaults=self.defaults)
            if params.n > self.defaults.n:
                raise ValueError(f"`n` {params.n} is more than --n {self.defaults.n}")
            return self._complete(params)
        except ValueError as error:
            return RowError("bad_params", str(error))

    def _complete(self, params: SamplingParams) -> SamplingParams:
        for name, ids in (
            ("logit_bias", [token_id for token_id, _ in params.logit_bias]),
            ("stop_token_ids", params.stop_token_ids),
        ):
            unknown = [token_id for token_id in ids if not 0 <= token_id < self._vocab_size]
            if unknown:
                raise ValueError(f"`{name}` names token id {unknown[0]}; the model has 0 .. {self._vocab_size - 1}")
        if not params.bad_words or params.bad_words_token_ids:
            return params
        if params.bad_words not in self._bad_words:
            self._bad_words[params.bad_words] = self._encode_bad_words(params.bad_words)
        return dataclasses.replace(params, bad_words_token_ids=self._bad_words[params.bad_words])

    def _encode_bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is at the beginning of a text and as it is after a space, which are different tokens."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip()):
                ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                if ids and max(ids) < self._vocab_size:
                    found[ids] = None
        return tuple(found)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"the parameters are text, but not JSON: {error}") from None
        if value is None:
            return {}
    if isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        value = dict(value)  # an Arrow map
    if not isinstance(value, Mapping):
        raise ValueError(f"the parameters must be an object, not {type(value).__name__}")
    return value
