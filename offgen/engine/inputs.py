"""Turns a plan into tensors. Knows seats, positions and slots; knows neither text nor policy.

Each running row sits on a seat. Its block table, length and last sampled token stay in arrays indexed by seat, so that
a step applies only what changed and gathers the rest without a loop over rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from offgen.backends.base import AttentionInputs, Backend
from offgen.scheduling.batch import Batch

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step as tensors.

    token_ids       [T] int64 on the device: chunk tokens first, then one per decode row
    sample_indices  [S] int64: which of the T positions are sampled (None: the last S, in order)
    sample_seats    the seat of each sampled position
    sample_request_ids  the request of each sampled position
    """

    token_ids: torch.Tensor
    attention: AttentionInputs
    sample_indices: torch.Tensor | None
    sample_seats: Sequence[int]
    sample_request_ids: Sequence[int]


class Seats:
    """What the rows that run have: block tables, lengths, last tokens. Written by `apply`, `inputs` and `advance`."""

    def __init__(self, max_num_seqs: int, max_blocks_per_row: int, block_size: int, backend: Backend) -> None:
        self.block_size = block_size
        self._upload = backend.upload
        self.block_tables = np.full((max_num_seqs, max_blocks_per_row), -1, dtype=np.int32)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int32)
        self.seq_lens = np.zeros(max_num_seqs, dtype=np.int32)  # tokens whose KV is, or is being, written
        self.last_token_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=backend.device)
        self._uploaded: tuple[Sequence[int], torch.Tensor] | None = None

    def apply(self, batch: Batch) -> None:
        """Take over who left, who entered, and who got further blocks."""
        for seat in batch.left:
            self.block_tables[seat, : self.num_blocks[seat]] = -1
            self.num_blocks[seat] = 0
        for entry in batch.entered:
            self._write(entry.seat, 0, entry.block_ids)
            self.seq_lens[entry.seat] = entry.num_cached_tokens
        for grant in batch.grants:
            self._write(grant.seat, grant.first, grant.block_ids)

    def _write(self, seat: int, first: int, block_ids: Ids) -> None:
        self.block_tables[seat, first : first + len(block_ids)] = block_ids
        self.num_blocks[seat] = first + len(block_ids)

    def inputs(self, batch: Batch, known_ids: Mapping[int, Sequence[Ids]]) -> StepInputs:
        """The step's tensors, and the rows' lengths moved on.

        known_ids   by request id of each chunk: the row's prompt ids and output ids
        """
        num_chunks, num_decodes = len(batch.chunks), len(batch.decode_seats)
        seats = np.empty(num_chunks + num_decodes, dtype=np.int64)
        lengths = np.ones(num_chunks + num_decodes, dtype=np.int32)
        starts = np.empty(num_chunks + num_decodes, dtype=np.int32)
        for index, chunk in enumerate(batch.chunks):
            seats[index], starts[index], lengths[index] = chunk.seat, chunk.start, chunk.length
        seats[num_chunks:] = batch.decode_seats
        starts[num_chunks:] = self.seq_lens[seats[num_chunks:]]
        ends = np.cumsum(lengths, dtype=np.int32)
        positions = np.arange(ends[-1], dtype=np.int32) + np.repeat(starts - (ends - lengths), lengths)
        seq_lens = starts + lengths
        self.seq_lens[seats] = seq_lens

        token_seats = np.repeat(seats, lengths)
        slots = (
            self.block_tables[token_seats, positions // self.block_size] * self.block_size + positions % self.block_size
        )
        width = int(self.num_blocks[seats].max())
        attention = AttentionInputs(
            slots=self._upload(slots.astype(np.int32, copy=False)),
            positions=self._upload(positions),
            block_tables=self._upload(np.ascontiguousarray(self.block_tables[seats, :width])),
            seq_lens=self._upload(seq_lens),
            cu_seqlens_q=self._upload(np.concatenate(([0], ends)).astype(np.int32)),
            num_decodes=num_decodes,
            max_seq_len=int(seq_lens.max()),
            block_size=self.block_size,
            total_seq_len=int(seq_lens.sum()),
        )
        sampling = [(int(ends[i]) - 1, c.seat, c.request_id) for i, c in enumerate(batch.chunks) if c.samples]
        return StepInputs(
            token_ids=self._token_ids(batch, known_ids),
            attention=attention,
            sample_indices=self._sample_indices([place for place, _, _ in sampling], int(ends[-1]), num_decodes)
            if num_chunks
            else None,
            sample_seats=[*(seat for _, seat, _ in sampling), *batch.decode_seats] if sampling else batch.decode_seats,
            sample_request_ids=[*(request_id for _, _, request_id in sampling), *batch.decode_request_ids],
        )

    def advance(self, seats: Sequence[int], token_ids: torch.Tensor) -> None:
        """Keep the sampled ids [S] as the next inputs of their seats, on the device."""
        self.last_token_ids[self._on_device(seats)] = token_ids

    def _on_device(self, seats: Sequence[int]) -> torch.Tensor:
        """Uploaded once while the same list comes: batches share theirs as long as no row comes or goes."""
        if self._uploaded is None or self._uploaded[0] is not seats:
            self._uploaded = seats, self._upload(np.asarray(seats, dtype=np.int64))
        return self._uploaded[1]

    def _token_ids(self, batch: Batch, known_ids: Mapping[int, Sequence[Ids]]) -> torch.Tensor:
        decoded = self.last_token_ids[self._on_device(batch.decode_seats)]
        if not batch.chunks:
            return decoded
        known = [_slice(known_ids[c.request_id], c.start, c.length) for c in batch.chunks]
        return torch.cat([self._upload(np.concatenate(known).astype(np.int64, copy=False)), decoded])

    def _sample_indices(self, chunk_places: Sequence[int], num_tokens: int, num_decodes: int) -> torch.Tensor:
        places = np.concatenate(
            (np.asarray(chunk_places, dtype=np.int64), np.arange(num_tokens - num_decodes, num_tokens))
        )
        return self._upload(places)


def _slice(parts: Sequence[Ids], start: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens [start, start + length) of a row whose ids come in parts (prompt, output)."""
    taken: list[int] = []
    for part in parts:
        if start < len(part) and length > 0:
            piece = part[start : start + length]
            taken.extend(piece)
            length -= len(piece)
        start = max(0, start - len(part))
    return np.asarray(taken, dtype=np.int64)
