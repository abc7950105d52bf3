"""The nouns that travel: a row becomes a prompt, a prompt becomes completions.

Pure data. Knows no file format, no tokenizer, no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from offgen.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class RowError:
    """Why one row failed: a stable machine-readable `type`, and a message for people."""

    # bad_row, bad_params, template_error, empty_prompt, prompt_too_long, token_out_of_range, non_finite_logits, …
    type: str
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True)
class Row:
    """One input record, and where it came from.

    record, index   the pyarrow.RecordBatch that holds the row's columns, and its place there (opaque here:
                    the writer takes the pass-through columns from it; one batch is shared by its rows)
    values          the columns that the prompt and the parameters need, as Python values
    where           `file:line` or `file:row`, for messages
    error           set by a reader for a record it could not read (`bad_row`)
    """

    row_id: int
    record: Any
    index: int
    values: Mapping[str, Any]
    where: str
    error: RowError | None = None


class Watch(Protocol):
    """What a prompt brings along so that the engine need not know text. One per sample, made by text/."""

    @property
    def has_stops(self) -> bool:
        """True if `push` must be called for every new token (there are stop strings)."""
        ...

    def push(self, token_id: int) -> str | None:
        """Take one generated token; return the stop string that is now complete, or None."""
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """The completion: what all `token_ids` add to the decoded prompt, cut before a stop string that matched."""
        ...


class WatchFactory(Protocol):
    def __call__(self) -> Watch: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row, rendered and tokenized. With `error` set it passes through the engine, as error completions."""

    row: Row
    token_ids: Sequence[int]
    params: SamplingParams
    make_watch: WatchFactory | None = None  # None: the engine leaves Completion.text empty
    truncated: bool = False
    error: RowError | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability under the raw model distribution (natural logarithm; rank 1 is the likeliest)."""

    token_id: int
    logprob: float | None
    rank: int
    top: Sequence[tuple[int, float | None]] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One request's life in seconds of the monotonic clock, from entering the scheduler's window."""

    queue_s: float | None = None  # until its first token of prefill is scheduled
    ttft_s: float | None = None  # until its first generated token
    tpot_s: float | None = None  # mean time per generated token after the first; None for one token
    e2e_s: float | None = None
    cached_tokens: int = 0
    num_preemptions: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sample of one row. `num_samples` completions make a row."""

    row: Row
    sample_index: int = 0
    num_samples: int = 1
    text: str | None = None  # None if the row failed
    finish_reason: str = "error"  # stop, length, error
    # stop: None for EOS, the stop string, or the stop id in decimals; length: max_tokens, context
    stop_reason: str | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    token_ids: Sequence[int] = ()  # what the model made, stop and EOS included
    error: RowError | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    logprobs: Sequence[TokenLogprob | None] | None = None  # one per token of token_ids
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None  # one per prompt token; the first is None
