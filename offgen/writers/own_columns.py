"""The columns that offgen adds: their types, and how a batch of completions becomes them.

Two forms. The journal's is flat and holds all, whatever was asked for: JOURNAL_FIELDS first, in that order, then the
pass-through columns under their own names. The output's is what docs/cli.md promises: pass-through columns, then ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from offgen.records import Completion, RequestStats, TokenLogprob
from offgen.writers.options import OutputOptions

LATENCIES = ("queue_s", "ttft_s", "tpot_s", "e2e_s")

_TOP = pa.struct([("token_id", pa.int32()), ("logprob", pa.float32())])
LOGPROBS = pa.list_(
    pa.struct([("token_id", pa.int32()), ("logprob", pa.float32()), ("rank", pa.int32()), ("top", pa.list_(_TOP))])
)
_STATS_FIELDS = [
    *[pa.field(name, pa.float64()) for name in LATENCIES],
    pa.field("cached_tokens", pa.int32()),
    pa.field("num_preemptions", pa.int32()),
    pa.field("truncated", pa.bool_()),
]
JOURNAL_FIELDS = [
    pa.field("row_id", pa.int64()),
    pa.field("sample_index", pa.int32()),
    pa.field("completion", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("stop_reason", pa.string()),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("completion_tokens", pa.int32()),
    pa.field("error", pa.string()),
    *_STATS_FIELDS,
    pa.field("finish_order", pa.int64()),  # within one frame
    pa.field("completion_token_ids", pa.list_(pa.int32())),
    pa.field("logprobs", LOGPROBS),
    pa.field("prompt_logprobs", LOGPROBS),
]
_PLACE = {field.name: place for place, field in enumerate(JOURNAL_FIELDS)}
NUM_JOURNAL_FIELDS = len(JOURNAL_FIELDS)


def journal_schema(pass_through: pa.Schema) -> pa.Schema:
    return pa.schema([*JOURNAL_FIELDS, *pass_through])


def journal_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """One of our own columns of a journal's batch; a pass-through column may bear the same name."""
    return batch.column(_PLACE[name])


def build_journal_columns(
    completions: Sequence[Completion], finish_order: Sequence[int], options: OutputOptions
) -> list[pa.Array]:
    """The own columns of finished samples."""
    stats = [one.stats for one in completions]
    count = len(completions)
    return [
        pa.array(np.fromiter([one.row.row_id for one in completions], np.int64, count)),
        pa.array(np.fromiter([one.sample_index for one in completions], np.int32, count)),
        _texts([None if one.error is not None else one.text for one in completions]),
        _texts([one.finish_reason for one in completions]),
        _texts([one.stop_reason for one in completions]),
        pa.array(np.fromiter([one.num_prompt_tokens for one in completions], np.int32, count)),
        pa.array(np.fromiter([one.num_completion_tokens for one in completions], np.int32, count)),
        _texts([None if one.error is None else str(one.error) for one in completions]),
        *_stats_columns(stats),
        pa.array(np.fromiter(finish_order, np.int64, count)),
        _token_ids(completions) if options.with_token_ids else pa.nulls(count, pa.list_(pa.int32())),
        _logprobs([one.logprobs for one in completions] if options.with_logprobs else [None] * count),
        _logprobs([one.prompt_logprobs for one in completions] if options.with_prompt_logprobs else [None] * count),
    ]


def _stats_columns(stats: Sequence[RequestStats]) -> list[pa.Array]:
    count = len(stats)
    return [
        pa.array([one.queue_s for one in stats], pa.float64()),
        pa.array([one.ttft_s for one in stats], pa.float64()),
        pa.array([one.tpot_s for one in stats], pa.float64()),
        pa.array([one.e2e_s for one in stats], pa.float64()),
        pa.array(np.fromiter([one.cached_tokens for one in stats], np.int32, count)),
        pa.array(np.fromiter([one.num_preemptions for one in stats], np.int32, count)),
        pa.array(np.fromiter([one.truncated for one in stats], np.bool_, count)),
    ]


def _texts(values: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if value is None else _valid(value) for value in values], pa.string())


def _valid(text: str) -> str:
    """Surrogate pairs joined, lone surrogates replaced: what UTF-8 can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _token_ids(completions: Sequence[Completion]) -> pa.Array:
    offsets = [0, *accumulate(len(one.token_ids) for one in completions)]
    values = np.fromiter((token for one in completions for token in one.token_ids), np.int32, offsets[-1])
    failed = np.fromiter((one.error is not None for one in completions), np.bool_, len(completions))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), mask=pa.array(failed))


def _logprobs(rows: Sequence[Sequence[TokenLogprob | None] | None]) -> pa.Array:
    """list<struct<token_id, logprob, rank, top>>: a place without a value is null, and so is a value that is not
    finite.
    """
    if all(row is None for row in rows):
        return pa.nulls(len(rows), LOGPROBS)
    tokens = [token for row in rows if row is not None for token in row]
    known = [token for token in tokens if token is not None]
    tops = [pair for token in known for pair in token.top]
    top_lists = pa.ListArray.from_arrays(
        pa.array([0, *accumulate(0 if token is None else len(token.top) for token in tokens)], pa.int32()),
        pa.StructArray.from_arrays(
            [
                pa.array([token_id for token_id, _ in tops], pa.int32()),
                pa.array([_finite(value) for _, value in tops], pa.float32()),
            ],
            fields=list(_TOP),
        ),
    )
    structs = pa.StructArray.from_arrays(
        [
            pa.array([None if token is None else token.token_id for token in tokens], pa.int32()),
            pa.array([None if token is None else _finite(token.logprob) for token in tokens], pa.float32()),
            pa.array([None if token is None else token.rank for token in tokens], pa.int32()),
            top_lists,
        ],
        fields=list(LOGPROBS.value_type),
        mask=pa.array([token is None for token in tokens], pa.bool_()),
    )
    offsets = [0, *accumulate(0 if row is None else len(row) for row in rows)]
    absent = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, mask=absent)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def output_fields(options: OutputOptions) -> list[pa.Field]:
    """The own columns of the output, prefixed, in the order of docs/cli.md."""
    fields = [pa.field("row_id", pa.int64())]
    if options.num_samples > 1:
        fields.append(pa.field("sample_index", pa.int32()))
    fields += [pa.field(name, pa.string()) for name in ("completion", "finish_reason", "stop_reason")]
    fields += [pa.field(name, pa.int32()) for name in ("prompt_tokens", "completion_tokens")]
    fields.append(pa.field("error", pa.string()))
    if options.with_stats:
        fields.append(pa.field("stats", pa.struct(_STATS_FIELDS)))
    if options.with_token_ids:
        fields.append(pa.field("completion_token_ids", pa.list_(pa.int32())))
    if options.with_logprobs:
        fields.append(pa.field("logprobs", LOGPROBS))
    if options.with_prompt_logprobs:
        fields.append(pa.field("prompt_logprobs", LOGPROBS))
    return [field.with_name(options.column_prefix + field.name) for field in fields]


def output_columns(batch: pa.RecordBatch, options: OutputOptions) -> list[pa.Array]:
    """The own columns of a journal's batch in the output's form, as `output_fields` says."""
    names = [field.name.removeprefix(options.column_prefix) for field in output_fields(options)]
    return [_stats(batch) if name == "stats" else journal_column(batch, name) for name in names]


def _stats(batch: pa.RecordBatch) -> pa.Array:
    return pa.StructArray.from_arrays(
        [journal_column(batch, field.name) for field in _STATS_FIELDS], fields=list(_STATS_FIELDS)
    )


def error_types(errors: Iterable[str | None]) -> dict[str, int]:
    """`type: message` texts, counted by type."""
    counts: dict[str, int] = {}
    for text in errors:
        if text is not None:
            kind = text.partition(":")[0]
            counts[kind] = counts.get(kind, 0) + 1
    return counts
