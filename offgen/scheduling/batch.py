"""All that crosses from scheduling to the engine: which tokens run in one step, as counts and block ids.

Rows sit on *seats*, 0 .. max_num_seqs - 1, for as long as they run, so that the runner keeps a seat's block table and
sampling state in place and a step only tells it what changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A request takes a seat (first admission, or again after a preemption)."""

    request_id: int
    seat: int
    num_cached_tokens: int  # KV of these first tokens is already in `block_ids`
    block_ids: Sequence[int]  # blocks held so far, this step's included; more arrive as BlockGrant


@dataclass(frozen=True, slots=True)
class BlockGrant:
    """A running row gets further blocks."""

    seat: int
    first: int  # index in the row's block table of the first new id
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Query tokens whose ids the host knows: prefill, and recompute after a preemption."""

    request_id: int
    seat: int
    start: int  # position of the first query token; KV of [0, start) is in the cache
    length: int
    samples: bool  # True when start + length reaches the request's last token: logits of the last position are sampled


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs in one step.

    Apply in this order: `left`, `entered`, `grants`; then run `chunks` followed by one token for every seat of
    `decode_seats` (its input is the token sampled last for that seat; its position is the row's length - 1).
    Sampled ids come back as one list: the chunks that sample in order, then the decode seats in order.
    """

    step: int
    left: Sequence[int]  # seats vacated since the last batch, by finishing or preemption
    entered: Sequence[Entry]
    grants: Sequence[BlockGrant]
    chunks: Sequence[Chunk]
    decode_seats: Sequence[int]
    decode_request_ids: Sequence[int]  # same order

    @property
    def num_prefill_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        return self.num_prefill_tokens + len(self.decode_seats)
