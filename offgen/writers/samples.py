"""A row is handed on when all of its samples are in. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Sequence

from offgen.records import Completion

_OVERHEAD_BYTES = 512  # of a completion and its row, as Python objects
_TOKEN_BYTES = 36
_LOGPROB_BYTES = 200


class SampleGate:
    """Holds the samples of rows that are not complete. Used from one thread."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Completion]] = {}
        self._last_record: object = None
        self._row_bytes = 0

    def admit(self, completion: Completion) -> Sequence[Completion] | None:
        """The row's samples in their order if this was the last one."""
        if completion.num_samples <= 1:
            return (completion,)
        row_id = completion.row.row_id
        samples = self._waiting.setdefault(row_id, [])
        samples.append(completion)
        if len(samples) < completion.num_samples:
            return None
        del self._waiting[row_id]
        return sorted(samples, key=lambda one: one.sample_index)

    def num_bytes(self, samples: Sequence[Completion]) -> int:
        """About what the row holds in memory, its share of the batch it came in included."""
        record = samples[0].row.record
        if record is not self._last_record:
            self._last_record = record
            self._row_bytes = record.nbytes // max(1, record.num_rows) + _OVERHEAD_BYTES
        total = 0
        for one in samples:
            total += self._row_bytes + len(one.text or "") + _TOKEN_BYTES * len(one.token_ids)
            if one.logprobs is not None or one.prompt_logprobs is not None:
                total += _LOGPROB_BYTES * (len(one.logprobs or ()) + len(one.prompt_logprobs or ()))
        return total
