"""An engine without a model: each prompt is its own completion. For tests and benchmarks of everything around an
engine.

The same doors as Engine (`generate`, `stop`, `stats`). A prompt's token ids are the bytes of its text, so that
counts of tokens are counts of bytes. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from offgen.records import Completion, Prompt, RequestStats, Row, RowError
from offgen.stats.engine import EngineStats

NAME = "echo"  # as in `--model echo`


class EchoEngine:
    """Returns the text of each prompt, in input order, row by row.

    rows_per_s   not faster than this; None: as fast as it goes
    """

    def __init__(self, *, rows_per_s: float | None = None) -> None:
        self.stats = EngineStats(max_running=1)
        self._pause_s = 0.0 if rows_per_s is None else 1.0 / rows_per_s
        self._is_stopped = False

    def generate(self, prompts: Iterable[Prompt]) -> Iterator[Completion]:
        """One completion for each sample of each prompt; an error passes through as error completions."""
        stats = self.stats
        for prompt in prompts:
            if self._is_stopped:
                return
            if self._pause_s:
                time.sleep(self._pause_s)
            row, num_samples = prompt.row, prompt.params.n
            error = row.error or prompt.error
            if error is not None:
                for sample_index in range(num_samples):
                    yield Completion(row, sample_index, num_samples, error=error)
                continue
            text, num_tokens = text_of(prompt), len(prompt.token_ids)
            stats.steps += num_tokens * num_samples
            stats.sampling_steps += num_tokens * num_samples
            stats.prefill_tokens += num_tokens
            stats.sampled_tokens += num_tokens * num_samples
            request = _STATS_OF_TRUNCATED if prompt.truncated else _STATS
            for sample_index in range(num_samples):
                yield Completion(
                    row, sample_index, num_samples, text, "stop", None, num_tokens, num_tokens, prompt.token_ids,
                    None, request,
                )  # fmt: skip

    def stop(self) -> None:
        """End `generate` before the next prompt."""
        self._is_stopped = True

    def describe(self) -> dict[str, Any]:
        return {"model": NAME, "device": "none", "dtype": "none"}


_STATS = RequestStats(0.0, 0.0, 0.0, 0.0)
_STATS_OF_TRUNCATED = RequestStats(0.0, 0.0, 0.0, 0.0, truncated=True)


def text_of(prompt: Prompt) -> str:
    """The text whose bytes the prompt's token ids are."""
    token_ids = prompt.token_ids
    data = token_ids if isinstance(token_ids, bytes) else bytes(token & 0xFF for token in token_ids)
    return data.decode("utf-8", "replace")


def echo_prompts(rows: Iterable[Row], *, column: str, params: Any) -> Iterator[Prompt]:
    """The rows' prompts for the echo engine, straight from a text column: no template, no tokenizer."""
    for row in rows:
        text = row.values.get(column)
        if row.error is not None or not isinstance(text, str):
            yield Prompt(row, b"", params, error=row.error or bad_row(row, column))
        else:
            yield Prompt(row, text.encode("utf-8", "replace"), params)


def bad_row(row: Row, column: str) -> RowError:
    return RowError("bad_row", f"{row.where}: column `{column}` is not text")
