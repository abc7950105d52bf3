"""From output ids to a completion's text: what they add to the decoded prompt.

A token's text depends on its neighbours (leading spaces, characters made of several byte tokens), so a completion is
the decoded prompt and output less the decoded prompt. Only the end of the prompt is decoded, and for stop strings only
the end of the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from offgen.sampling.params import SamplingParams
from offgen.text.stops import Match, find_stop
from offgen.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
WINDOW = 8  # tokens with text that are decoded as context: a character has at most 4 bytes, so at most 4 tokens
_MAX_PENDING = 64  # after so many tokens a character that is still incomplete is taken for broken


class PromptText:
    """The end of a prompt, enough of it to decode what follows. Shared by the samples of a row."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self.tokenizer = tokenizer
        self.params = params
        self._prompt_ids = prompt_ids

    @cached_property
    def window(self) -> list[int]:
        return window(self.tokenizer, self._prompt_ids, skip_special_tokens=self.params.skip_special_tokens)

    @cached_property
    def text(self) -> str:
        return self.decode(self.window)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=self.params.skip_special_tokens)

    @cached_property
    def special_stops(self) -> dict[int, str]:
        """Special tokens that are stop strings but have no text to find, being left out; EOS ends a row by itself."""
        if not self.params.skip_special_tokens:
            return {}
        eos_ids = frozenset() if self.params.ignore_eos else self.tokenizer.eos_ids
        special = self.tokenizer.special_texts.items()
        return {one: text for one, text in special if text in self.params.stop and one not in eos_ids}

    def __call__(self) -> Detokenizer:
        return Detokenizer(self)


@dataclass(frozen=True, slots=True)
class _Cut:
    match: Match
    num_tokens: int  # tokens taken when it was found


class Detokenizer:
    """One sample's records.Watch: finds stop strings as tokens come, and makes the text at the end.

    `_context` and `_pending` are the last tokens: the text of the former is in `_done` (all but its length is dropped
    when no stop string can reach it), the text of the latter may still change.
    """

    def __init__(self, prompt: PromptText) -> None:
        self._prompt = prompt
        self._stops = prompt.params.stop
        self._reach = (
            max((len(stop) for stop in self._stops), default=1) - 1
        )  # characters a stop string may begin earlier
        self._context: list[int] | None = None
        self._context_text = ""
        self._pending: list[int] = []
        self._done = ""  # the end of the settled text
        self._num_dropped = 0  # characters before it
        self._num_tokens = 0
        self._searched = 0  # characters, from the completion's start, in which every match was found or is not wanted
        self._cut: _Cut | None = None

    @property
    def has_stops(self) -> bool:
        return bool(self._stops)

    def push(self, token_id: int) -> str | None:
        """Take one generated token; return the stop string that is now complete, or None."""
        self._num_tokens += 1
        self._pending.append(token_id)
        may_stop = self._num_tokens > self._prompt.params.min_tokens
        if may_stop and token_id in self._prompt.special_stops:
            stop = self._prompt.special_stops[token_id]
            self._cut = _Cut(Match(stop, -1), self._num_tokens)
            return stop
        added = self._pending_text()
        steady = added.rstrip(REPLACEMENT)
        text = self._done + steady
        searched = min(self._searched - self._num_dropped, len(text))
        match = find_stop(text, self._stops, searched=searched) if may_stop else None
        if match is not None:
            self._cut = _Cut(Match(match.stop, match.start + self._num_dropped), self._num_tokens)
            return match.stop
        self._searched = self._num_dropped + len(text)
        self._settle(added, is_steady=len(steady) == len(added))
        return None

    def text(self, token_ids: Sequence[int]) -> str:
        """What all `token_ids` add to the decoded prompt, cut before a stop string that matched."""
        if self._cut is None:
            return self._added(token_ids)
        text = self._added(token_ids[: self._cut.num_tokens])
        stop, start = self._cut.match.stop, self._cut.match.start
        if start < 0:
            return text
        if text.startswith(stop, start):
            return text[:start]
        # A later byte changed how earlier ones decode, so the place moved.
        found = text.find(stop)
        return text[:found] if found >= 0 else text

    def _added(self, token_ids: Sequence[int]) -> str:
        prompt = self._prompt
        return difference(prompt.text, prompt.decode([*prompt.window, *token_ids]))

    def _pending_text(self) -> str:
        if self._context is None:
            self._context, self._context_text = self._prompt.window, self._prompt.text
        return difference(self._context_text, self._prompt.decode([*self._context, *self._pending]))

    def _settle(self, added: str, *, is_steady: bool) -> None:
        """Move the pending tokens into the context, once their text will not change."""
        pending = len(self._pending)
        can_change = not is_steady or self._pending[-1] in self._prompt.tokenizer.byte_ids
        if pending < WINDOW or (can_change and pending < _MAX_PENDING) or self._context is None:
            return
        self._context = window(
            self._prompt.tokenizer,
            [*self._context, *self._pending],
            skip_special_tokens=self._prompt.params.skip_special_tokens,
        )
        self._context_text = self._prompt.decode(self._context)
        self._pending = []
        done = self._done + added
        kept = min(len(done), self._reach)
        self._num_dropped += len(done) - kept
        self._done = done[len(done) - kept :]


def window(tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool) -> list[int]:
    """The last tokens of token_ids: so many that what follows them decodes as it would after all of them."""
    if not tokenizer.is_local:
        return list(token_ids)
    silent = tokenizer.special_texts if skip_special_tokens else {}
    start, num_visible = len(token_ids), 0
    while start > 0 and num_visible < WINDOW:
        start -= 1
        num_visible += token_ids[start] not in silent
    # A run of byte tokens is text or not as a whole, and it goes through tokens without text.
    while (
        start > 0 and _in_run(tokenizer, token_ids[start], silent) and _in_run(tokenizer, token_ids[start - 1], silent)
    ):
        start -= 1
    return list(token_ids[start:])


def _in_run(tokenizer: Tokenizer, token_id: int, silent: Mapping[int, str]) -> bool:
    return token_id in tokenizer.byte_ids or token_id in silent


def difference(before: str, after: str) -> str:
    """What `after` has beyond the beginning that it shares with `before`."""
    if after.startswith(before):
        return after[len(before) :]
    pairs = enumerate(zip(before, after, strict=False))
    first = next((place for place, (old, new) in pairs if old != new), min(len(before), len(after)))
    return after[first:]
