"""The largest step a job can run, run once on nonsense to see what memory it takes. Knows shapes; keeps nothing.

Worst in every part: the whole token budget spread over all seats, every row sampled with penalties and
log-probabilities, and as many logits of a prompt at once as are ever held.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from offgen.backends.base import AttentionInputs, Backend
from offgen.engine.model_runner import LOGITS_AT_ONCE
from offgen.models.base import Model
from offgen.sampling.params import SamplingParams
from offgen.sampling.sampler import Sampler

# what turns every part of the sampler on
ASKS_MOST = SamplingParams(
    temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=1
)


@dataclass(frozen=True, slots=True)
class StepSize:
    """num_tokens over num_rows; no row has more than max_row_tokens."""

    num_tokens: int
    num_rows: int
    max_row_tokens: int
    block_size: int

    def halved(self) -> StepSize:
        num_tokens = max(1, self.num_tokens // 2)
        return StepSize(num_tokens, min(self.num_rows, num_tokens), self.max_row_tokens, self.block_size)

    def row_lengths(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """[num_rows]: as even as they can be, none of them empty."""
        num_rows = min(self.num_rows, self.num_tokens)
        even, rest = divmod(self.num_tokens, num_rows)
        lengths = np.full(num_rows, even, dtype=np.int64)
        lengths[:rest] += 1
        return np.minimum(lengths, self.max_row_tokens)


def peak_bytes(model: Model, backend: Backend, size: StepSize) -> int | None:
    """What the step takes beside weights and KV pool; None, and nothing is run, where the device cannot tell.

    Raises torch.OutOfMemoryError where it does not fit.
    """
    return backend.peak_bytes(lambda: _run(model, backend, size))


@torch.inference_mode()
def _run(model: Model, backend: Backend, size: StepSize) -> None:
    config = model.config
    lengths = size.row_lengths()
    inputs = _inputs(lengths, size.block_size, backend)
    # all rows write to, and read from, the same block: values do not matter, and the pool is tiny
    kv_caches = backend.allocate_kv(config.num_layers, 1, size.block_size, list(config.attention))
    token_ids = backend.upload(np.zeros(int(lengths.sum()), dtype=np.int64))
    hidden = model.forward(token_ids, kv_caches, inputs)
    num_rows = len(lengths)
    sampler = Sampler(num_rows, config.vocab_size, backend.device, op=backend.sample_op)
    some = hidden[:LOGITS_AT_ONCE]
    sampler.prompt_logprobs(model.compute_logits(some), token_ids[: some.shape[0]], 1)
    seats = range(num_rows)
    for seat in seats:
        sampler.enter(
            seat, row_id=seat, sample_index=0, params=ASKS_MOST, prompt_ids=(0,), output_ids=(0,), eos_ids=frozenset()
        )
    sampler.sample(model.compute_logits(hidden[inputs.cu_seqlens_q[1:].long() - 1]), seats)


def _inputs(lengths: np.ndarray[tuple[int], np.dtype[np.int64]], block_size: int, backend: Backend) -> AttentionInputs:
    ends = np.cumsum(lengths)
    positions = (np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)).astype(np.int32)
    longest = int(lengths.max())
    return AttentionInputs(
        slots=backend.upload(positions % np.int32(block_size)),
        positions=backend.upload(positions),
        block_tables=backend.upload(np.zeros((len(lengths), -(-longest // block_size)), dtype=np.int32)),
        seq_lens=backend.upload(lengths.astype(np.int32)),
        cu_seqlens_q=backend.upload(np.concatenate(([0], ends)).astype(np.int32)),
        num_decodes=0,
        max_seq_len=longest,
        block_size=block_size,
        total_seq_len=int(ends[-1]),
    )
