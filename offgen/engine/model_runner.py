"""Runs one step: a batch in, sampled token ids out. Knows tensors and seats; knows no queue, no policy, no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from offgen.backends.base import Backend, Download, KVCache
from offgen.engine.decode_step import DecodeStep
from offgen.engine.inputs import Seats, StepInputs
from offgen.engine.tracked import Tracked
from offgen.models.base import Model
from offgen.records import TokenLogprob
from offgen.sampling.sampler import Sampled, Sampler
from offgen.scheduling.batch import Batch, Chunk
from offgen.stats.engine import EngineStats

LOGITS_AT_ONCE = 512  # positions of a prompt whose logits are held: 300 MB at a vocabulary of 150,000


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step sampled, on the host; all lists have one place for each sampled position."""

    request_ids: Sequence[int]
    token_ids: Sequence[int]
    non_finite: Sequence[int]  # places whose logits were not finite
    logprobs: Sequence[TokenLogprob | None] | None


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way."""

    batch: Batch
    started_s: float  # perf_counter
    num_kv_tokens: int
    request_ids: Sequence[int]
    sampled: Sampled | None
    token_ids: Download | None = None
    non_finite: Download | None = None

    def result(self) -> StepResult:
        """Wait for the step, and read what it sampled."""
        if self.sampled is None or self.token_ids is None or self.non_finite is None:
            return StepResult((), (), (), None)
        bad = self.non_finite.read()
        return StepResult(
            request_ids=self.request_ids,
            token_ids=self.token_ids.read().tolist(),
            non_finite=bad.nonzero().flatten().tolist() if bool(bad.any()) else (),
            logprobs=self.sampled.logprobs,
        )


class ModelRunner:
    """Owns the seats' tensors, the KV caches and the sampler; one call of `launch` is one forward pass."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        kv_caches: list[KVCache],
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        eos_ids: frozenset[int],
        enforce_eager: bool,
        stats: EngineStats,
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._seats = Seats(max_num_seqs, -(-max_model_len // block_size), block_size, backend)
        self._sampler = Sampler(
            max_num_seqs, model.config.vocab_size, backend.device, op=backend.sample_op, upload=backend.upload
        )
        self._download = backend.download
        self._eos_ids = eos_ids
        self._stats = stats
        # transformers' own code looks at values as it goes, so no graph can hold it
        can_capture = not enforce_eager and model.config.implementation == "native"
        self._forward = backend.capture(model.forward) if can_capture else model.forward
        self._decode_step = DecodeStep(model, backend, self._sampler, can_capture=can_capture)

    @torch.inference_mode()
    def launch(self, batch: Batch, tracked: Mapping[int, Tracked]) -> Launched:
        """Start one step. tracked: the requests of the batch by id."""
        started = perf_counter()
        self._seat(batch, tracked)
        inputs = self._seats.inputs(batch, {c.request_id: _known_ids(tracked[c.request_id]) for c in batch.chunks})
        moved = self._lap("inputs", started)
        sampled = self._decode_step.run(inputs, self._kv_caches)
        if sampled is None:
            sampled = self._run(batch, tracked, inputs)
        else:
            self._lap("forward", moved)
        if sampled is None:
            return Launched(batch, started, inputs.attention.total_seq_len or 0, (), None)
        self._seats.advance(inputs.sample_seats, sampled.token_ids)
        return Launched(
            batch,
            started,
            inputs.attention.total_seq_len or 0,
            inputs.sample_request_ids,
            sampled,
            token_ids=self._download(sampled.token_ids),
            non_finite=self._download(sampled.non_finite),
        )

    def _seat(self, batch: Batch, tracked: Mapping[int, Tracked]) -> None:
        for seat in batch.left:
            self._sampler.leave(seat)
        self._seats.apply(batch)
        for entry in batch.entered:
            row = tracked[entry.request_id]
            self._sampler.enter(
                entry.seat,
                row_id=row.prompt.row.row_id,
                sample_index=row.sample_index,
                params=row.prompt.params,
                prompt_ids=row.prompt.token_ids,
                output_ids=row.request.output_ids,
                eos_ids=self._eos_ids,
            )

    def _run(self, batch: Batch, tracked: Mapping[int, Tracked], inputs: StepInputs) -> Sampled | None:
        """Forward, logits and sampling one by one, for any step; None if no row samples."""
        moved = perf_counter()
        hidden = self._forward(inputs.token_ids, self._kv_caches, inputs.attention)
        moved = self._lap("forward", moved)
        self._read_prompts(batch, tracked, hidden)
        if not inputs.sample_seats:
            return None
        logits = self._logits(hidden, inputs)
        moved = self._lap("logits", moved)
        sampled = self._sampler.sample(logits, inputs.sample_seats)
        self._lap("sampling", moved)
        return sampled

    def _logits(self, hidden: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        chosen = hidden[-len(inputs.sample_seats) :] if inputs.sample_indices is None else hidden[inputs.sample_indices]
        return self._model.compute_logits(chosen)

    def _read_prompts(self, batch: Batch, tracked: Mapping[int, Tracked], hidden: torch.Tensor) -> None:
        """Log-probabilities of prompt tokens, for the rows that asked for them."""
        offset = 0
        for chunk in batch.chunks:
            row = tracked[chunk.request_id]
            if row.prompt_logprobs is not None:
                self._read_prompt(chunk, row, hidden[offset : offset + chunk.length])
            offset += chunk.length

    def _read_prompt(self, chunk: Chunk, row: Tracked, hidden: torch.Tensor) -> None:
        prompt_ids, values = row.prompt.token_ids, row.prompt_logprobs
        first, last = chunk.start + 1, min(chunk.start + chunk.length + 1, len(prompt_ids))
        if values is None or first >= last:
            return
        next_ids = torch.as_tensor(list(prompt_ids[first:last]), dtype=torch.int64, device=hidden.device)
        for start in range(0, last - first, LOGITS_AT_ONCE):
            end = min(start + LOGITS_AT_ONCE, last - first)
            logits = self._model.compute_logits(hidden[start:end])
            values[first + start : first + end] = self._sampler.prompt_logprobs(
                logits, next_ids[start:end], row.prompt.params.prompt_logprobs or 0
            )

    def _lap(self, name: str, since: float) -> float:
        now = perf_counter()
        self._stats.add_span(name, now - since)
        return now


def _known_ids(row: Tracked) -> Sequence[Sequence[int]]:
    return (row.prompt.token_ids, row.request.output_ids)
