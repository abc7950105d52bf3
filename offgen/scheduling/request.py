"""A prompt that the scheduler is serving: ids, counts, blocks. Knows no text, no sampling, no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class RequestState(Enum):
    """Where a request stands."""

    WAITING = "waiting"  # never admitted, or preempted
    PREFILLING = "prefilling"  # seated; some of its known tokens have no KV yet
    DECODING = "decoding"  # seated; one token a step
    LAST_STEP = "last step"  # the step that makes its last token is planned, its id not known yet
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ends, decided outside: a stop string, non-finite logits."""

    finish_reason: str  # stop, length, error
    stop_reason: str | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """One sample of one row.

    The first group of fields is given; all others are written by the scheduler (and its parts) only.
    `stop_ids` ends the request, EOS included; `eos_ids` tells which of them are EOS (their stop_reason is None).
    `group` is carried for the caller, unread.
    """

    request_id: int
    prompt_ids: Sequence[int]
    max_tokens: int = field(kw_only=True)
    min_tokens: int = field(default=0, kw_only=True)
    stop_ids: frozenset[int] = field(default=frozenset(), kw_only=True)
    eos_ids: frozenset[int] = field(default=frozenset(), kw_only=True)
    reads_cache: bool = field(default=True, kw_only=True)
    cache_salt: bytes = field(default=b"", kw_only=True)
    group: Any = field(default=None, kw_only=True)

    output_ids: list[int] = field(default_factory=list, init=False)
    state: RequestState = field(default=RequestState.WAITING, init=False)
    finish_reason: str | None = field(default=None, init=False)
    stop_reason: str | None = field(default=None, init=False)
    num_cached_tokens: int = field(default=0, init=False)  # found in the cache at the first admission
    num_preemptions: int = field(default=0, init=False)
    arrived_s: float = field(default=0.0, init=False)
    scheduled_s: float | None = field(default=None, init=False)
    first_token_s: float | None = field(default=None, init=False)
    finished_s: float | None = field(default=None, init=False)

    max_length: int = field(default=0, init=False)  # prompt and output tokens at which it ends by count
    arrival: int = field(default=-1, init=False)  # order of add()
    admission: int = field(default=-1, init=False)  # order of first admission; kept over preemptions: its age
    seat: int = field(default=-1, init=False)
    num_prefilled: int = field(default=0, init=False)  # tokens whose KV is planned, while prefilling
    num_lost_tokens: int = field(default=0, init=False)  # computed before the last preemption
    resumes_after: int = field(default=-1, init=False)  # step whose ids must be known before it is admitted again
    block_ids: list[int] = field(default_factory=list, init=False)
    block_hashes: list[bytes] = field(default_factory=list, init=False)
    num_shared_blocks: int = field(default=0, init=False)  # leading blocks found in the cache at the last admission
    num_published: int = field(default=0, init=False)  # leading blocks already offered to the prefix cache
    decode_index: int = field(default=-1, init=False)  # place in the decode set
    grow_tick: int = field(default=-1, init=False)  # decode tick at which it needs its next block
    end_tick: int = field(default=-1, init=False)  # decode tick that makes its last token
    expected_tokens: float = field(default=0.0, init=False)  # forecast of its output length

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens whose ids are known: prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is in the cache once the steps with known ids are done. Never above num_tokens."""
        if self.state in (RequestState.DECODING, RequestState.LAST_STEP):
            return self.num_tokens - 1
        return self.num_prefilled

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Known ids of positions [start, stop), over prompt and output."""
        num_prompt = len(self.prompt_ids)
        if stop <= num_prompt:
            return list(self.prompt_ids[start:stop])
        if start >= num_prompt:
            return self.output_ids[start - num_prompt : stop - num_prompt]
        return [*self.prompt_ids[start:], *self.output_ids[: stop - num_prompt]]
