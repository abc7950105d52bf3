"""Replays decode steps as recorded graphs: one for each padded number of rows and bucket of splits, in pairs.

A step of decode rows only is padded to the next size that has a graph, its inputs are copied to where that graph reads
them, and the graph is launched: one call instead of some hundreds. Any other step runs as it is. A size is recorded
when it comes up for the second time (the first compiles and warms what it needs), so that a small job does not wait.

Inputs lie in slots that take turns. Graphs share their memory, so what a step returned is read or copied, in stream
order, before the next step is launched.

Knows padding and slots; knows no model, and CUDA only through the `Capture` it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from offgen.backends.base import AttentionInputs, KVCache

NUM_SLOTS = 2
MAX_ROWS = 512  # above this a step is long enough to hide its launches
GRAPH_BYTES = 8 << 20  # kernel nodes, the output that is kept, a share of the pool: an allowance, not a measurement
BUCKETS_MET = 2  # of lengths, for each number of rows, of which a job meets but some


class Captured(Protocol):
    """A recorded run."""

    @property
    def output(self) -> Any: ...

    def replay(self) -> None: ...


Capture = Callable[[Callable[[], Any]], Captured]


@dataclass(frozen=True, slots=True)
class GraphKey:
    rows: int
    splits: int  # of the longest row, as `split_bucket` rounds it
    work: int  # of all rows together, as `work_bucket` rounds it; 0: unknown
    slot: int


@dataclass(slots=True)
class StaticInputs:
    """Where the graphs of one slot read. Written by StepGraphs, in stream order, before each launch."""

    token_ids: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: dict[int, torch.Tensor] = field(default_factory=dict)  # by bucket of splits
    extra: dict[str, torch.Tensor] = field(default_factory=dict)
    copied: dict[str, torch.Tensor] = field(default_factory=dict)  # what each of `extra` holds


def padded_rows(num_rows: int) -> int:
    """1, 2, 4, then by 8 to 64, then by 16: at most 12 % of a batch is padding."""
    if num_rows <= 4:
        return 1 << (num_rows - 1).bit_length()
    step = 8 if num_rows <= 64 else 16
    return -(-num_rows // step) * step


def split_bucket(max_seq_len: int, split_tokens: int) -> int:
    """Splits the grid is launched for, a power of two: one for the longest context would cost more than graphs save."""
    splits = max(1, -(-max_seq_len // split_tokens))
    return 1 << (splits - 1).bit_length()


def work_bucket(num_rows: int, total_seq_len: int, split_tokens: int) -> int:
    """Splits of all rows together, up to the next of four steps an octave: at most a fifth of the programs is idle."""
    work = num_rows + total_seq_len // split_tokens
    step = max(1, (1 << (work - 1).bit_length()) // 8)
    return -(-work // step) * step


def expected_graphs(max_rows: int) -> int:
    """Graphs that a job of up to so many rows at once is likely to record."""
    sizes = {padded_rows(num_rows) for num_rows in range(1, max_rows + 1)}
    return NUM_SLOTS * BUCKETS_MET * sum(size <= MAX_ROWS for size in sizes)


class StepGraphs:
    """`forward`, faster. Called in its place, with the same arguments and result.

    forward   (token_ids [T], kv_caches, inputs, **per_row) -> a tensor, or a tuple or dict of tensors, of T rows
    capture   records a run
    pads      per_row tensors [T, …] by name, and the value their padded rows get. Nobody writes into one that was
              handed in: the same tensor is not copied again
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        capture: Capture,
        *,
        device: torch.device,
        split_tokens: int,
        max_rows: int = MAX_ROWS,
        pads: Mapping[str, int] | None = None,
    ) -> None:
        self._forward, self._capture = forward, capture
        self._device, self._split_tokens, self._max_rows = device, split_tokens, max_rows
        self._pads = pads or {}
        self._slots = [self._make_slot() for _ in range(NUM_SLOTS)]
        self._cu_seqlens = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self._seen: set[GraphKey] = set()
        self._graphs: dict[GraphKey, Captured] = {}
        self._turn = 0
        self._kv_caches: list[KVCache] | None = None
        self.refusal: str | None = None  # why nothing is recorded any more: this model's step cannot be

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def __call__(
        self, token_ids: torch.Tensor, kv_caches: list[KVCache], inputs: AttentionInputs, **per_row: torch.Tensor
    ) -> Any:
        num_rows = token_ids.shape[0]
        if num_rows == 0 or num_rows != inputs.num_decodes or padded_rows(num_rows) > self._max_rows:
            return self._forward(token_ids, kv_caches, inputs, **per_row)
        assert self._kv_caches is None or self._kv_caches is kv_caches, "a graph holds the caches it was recorded with"
        self._kv_caches = kv_caches
        key = self._key(num_rows, inputs)
        self._turn = (self._turn + 1) % NUM_SLOTS
        static, static_extra = self._fill(key, token_ids, inputs, per_row)
        return _first_rows(self._run(key, static, static_extra), num_rows)

    def _key(self, num_rows: int, inputs: AttentionInputs) -> GraphKey:
        rows, splits = padded_rows(num_rows), split_bucket(inputs.max_seq_len, self._split_tokens)
        work = 0
        if inputs.total_seq_len is not None and splits > 1:
            work = work_bucket(rows, inputs.total_seq_len, self._split_tokens)
        return GraphKey(rows, splits, work, self._turn)

    def _run(self, key: GraphKey, static: AttentionInputs, extra: dict[str, torch.Tensor]) -> Any:
        token_ids = self._slots[key.slot].token_ids[: key.rows]

        def step() -> Any:
            return self._forward(token_ids, self._kv_caches, static, **extra)

        graph = self._graphs.get(key)
        if graph is None:
            if self.refusal is not None or replace(key, slot=0) not in self._seen:
                self._seen.add(replace(key, slot=0))
                return step()
            try:
                graph = self._graphs[key] = self._capture(step)
            except RuntimeError as error:  # a step that waits for the device, or no memory left
                self.refusal = str(error)
                return step()
        graph.replay()
        return graph.output

    def _fill(
        self, key: GraphKey, token_ids: torch.Tensor, inputs: AttentionInputs, per_row: Mapping[str, torch.Tensor]
    ) -> tuple[AttentionInputs, dict[str, torch.Tensor]]:
        """Copy a step's inputs to its slot; padded rows have length 0 and slot -1."""
        slot, rows = self._slots[key.slot], key.rows
        tables = self._block_tables(slot, key.splits, inputs.block_size)
        num_rows, width = token_ids.shape[0], min(inputs.block_tables.shape[1], tables.shape[1])
        tables[:num_rows, :width].copy_(inputs.block_tables[:, :width], non_blocking=True)
        for static, given, pad in (
            (slot.token_ids, token_ids, 0),
            (slot.slots, inputs.slots, -1),
            (slot.positions, inputs.positions, 0),
            (slot.seq_lens, inputs.seq_lens, 0),
        ):
            _copy_padded(static[:rows], given, pad)
        extra: dict[str, torch.Tensor] = {}
        for name, given in per_row.items():
            if name not in slot.extra:
                slot.extra[name] = given.new_empty(self._max_rows, *given.shape[1:])
            extra[name] = slot.extra[name][:rows]
            if slot.copied.get(name) is not given:
                _copy_padded(extra[name], given, self._pads[name])
                slot.copied[name] = given
        return replace(
            inputs,
            slots=slot.slots[:rows],
            positions=slot.positions[:rows],
            block_tables=tables[:rows],
            seq_lens=slot.seq_lens[:rows],
            cu_seqlens_q=self._cu_seqlens[: rows + 1],
            num_decodes=rows,
            max_seq_len=key.splits * self._split_tokens,
            total_seq_len=(key.work - rows) * self._split_tokens if key.work else None,
        ), extra

    def _block_tables(self, slot: StaticInputs, splits: int, block_size: int) -> torch.Tensor:
        if splits not in slot.block_tables:
            width = -(-splits * self._split_tokens // block_size)
            slot.block_tables[splits] = torch.zeros(self._max_rows, width, dtype=torch.int32, device=self._device)
        return slot.block_tables[splits]

    def _make_slot(self) -> StaticInputs:
        def ints(dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(self._max_rows, dtype=dtype, device=self._device)

        return StaticInputs(token_ids=ints(torch.int64), slots=ints(), positions=ints(), seq_lens=ints())


def _copy_padded(static: torch.Tensor, given: torch.Tensor, pad: int) -> None:
    static[: given.shape[0]].copy_(given, non_blocking=True)
    if given.shape[0] < static.shape[0]:
        static[given.shape[0] :].fill_(pad)


def _first_rows(output: Any, num_rows: int) -> Any:
    if isinstance(output, torch.Tensor):
        return output[:num_rows]
    if isinstance(output, dict):
        return {name: one[:num_rows] for name, one in output.items()}
    return tuple(one[:num_rows] for one in output)


@dataclass(frozen=True, slots=True)
class CudaCaptured:
    graph: torch.cuda.CUDAGraph
    output: Any

    def replay(self) -> None:
        self.graph.replay()


class CudaCapture:
    """Records into CUDA graphs that share one memory pool: their steps never run at the same time."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Callable[[], Any]) -> CudaCaptured:
        # torch.cuda.graph would collect garbage and empty the allocator each time: too slow for sizes met on the way
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = run()
            finally:
                graph.capture_end()
        torch.cuda.synchronize()
        return CudaCaptured(graph, output)
