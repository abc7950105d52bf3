"""The bookkeeping of step graphs, on CPU: a fake capture keeps the run and plays it again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from offgen.backends.base import AttentionInputs
from offgen.backends.cuda_graphs import StepGraphs, expected_graphs, padded_rows, split_bucket, work_bucket

SPLIT = 64
BLOCK = 16
KV: list[Any] = []


@dataclass
class Recorded:
    """Plays its run again into the output of the first time, as a graph does."""

    run: Any
    output: torch.Tensor

    def replay(self) -> None:
        self.output.copy_(self.run())


@dataclass
class FakeCapture:
    recorded: list[Recorded] = field(default_factory=list)

    def __call__(self, run):
        self.recorded.append(Recorded(run, run().clone().fill_(float("nan"))))
        return self.recorded[-1]


@dataclass
class Forward:
    """Adds up what a row's inputs say, and keeps what it was called with."""

    calls: list[AttentionInputs] = field(default_factory=list)

    def __call__(self, token_ids, kv_caches, inputs, **per_row):
        self.calls.append(inputs)
        blocks = torch.arange(inputs.block_tables.shape[1])[None, :] * BLOCK < inputs.seq_lens[:, None]
        sums = (inputs.block_tables * blocks).sum(-1)
        total = token_ids + 10 * inputs.positions + 100 * inputs.slots + sums
        for value in per_row.values():
            total = total + 1000 * value
        return total.to(torch.float32).unsqueeze(1)


def decode_inputs(seq_lens: list[int], seed: int = 0) -> tuple[torch.Tensor, AttentionInputs]:
    generator = torch.Generator().manual_seed(seed)
    lens = torch.tensor(seq_lens, dtype=torch.int32)
    width = -(-max(seq_lens) // BLOCK)
    tables = torch.randint(0, 50, (len(seq_lens), width), generator=generator, dtype=torch.int32)
    tables[torch.arange(width)[None, :] * BLOCK >= lens[:, None]] = -1
    inputs = AttentionInputs(
        slots=torch.randint(0, 99, lens.shape, generator=generator, dtype=torch.int32),
        positions=lens - 1,
        block_tables=tables,
        seq_lens=lens,
        cu_seqlens_q=torch.arange(len(seq_lens) + 1, dtype=torch.int32),
        num_decodes=len(seq_lens),
        max_seq_len=max(seq_lens),
        block_size=BLOCK,
    )
    return torch.randint(0, 9, lens.shape, generator=generator), inputs


def make(**kwargs):
    forward, capture = Forward(), FakeCapture()
    graphs = StepGraphs(forward, capture, device=torch.device("cpu"), split_tokens=SPLIT, **kwargs)
    return graphs, forward, capture


def test_row_counts_are_padded_by_little():
    assert [padded_rows(n) for n in (1, 2, 3, 4, 5, 8, 9, 64, 65, 200)] == [1, 2, 4, 4, 8, 8, 16, 64, 80, 208]


def test_expected_graphs_count_sizes_and_not_rows():
    assert [expected_graphs(n) // expected_graphs(1) for n in (1, 2, 4, 64, 512, 2000)] == [1, 2, 3, 11, 39, 39]


def test_splits_are_bucketed_by_powers_of_two():
    assert [split_bucket(n, SPLIT) for n in (0, 1, 64, 65, 128, 129, 1000)] == [1, 1, 1, 2, 2, 4, 16]


def test_work_is_bucketed_by_four_steps_an_octave():
    assert [work_bucket(n, 0, SPLIT) for n in (1, 3, 8, 9, 17, 33, 100, 129)] == [1, 3, 8, 10, 20, 40, 112, 160]
    assert work_bucket(4, 3 * SPLIT, SPLIT) == 7


def test_a_graphs_inputs_have_the_work_it_was_recorded_for():
    graphs, forward, _ = make()
    token_ids, inputs = decode_inputs([70] * 7)
    graphs(token_ids, KV, replace(inputs, total_seq_len=490))
    seen = forward.calls[-1]
    assert 8 + seen.total_seq_len // SPLIT == work_bucket(8, 490, SPLIT)
    token_ids, inputs = decode_inputs([7] * 7)
    graphs(token_ids, KV, replace(inputs, total_seq_len=49))
    assert forward.calls[-1].total_seq_len is None  # one split a row: nothing to plan


def test_every_step_gives_what_forward_gives():
    graphs, _, capture = make()
    for step, lens in enumerate([[5], [6], [3, 70, 9], [4, 71, 10], [7], [8], [1, 2, 3], [9, 129, 1]] * 4):
        token_ids, inputs = decode_inputs(lens, seed=step)
        assert torch.equal(graphs(token_ids, KV, inputs), Forward()(token_ids, KV, inputs))
    assert graphs.num_graphs == len(capture.recorded) > 4


def test_a_size_is_recorded_when_it_comes_up_again_once_for_each_slot():
    graphs, forward, capture = make()
    for _ in range(3):
        graphs(*_with_kv(decode_inputs([5, 6, 7])))
    assert len(capture.recorded) == 2
    calls = len(forward.calls)
    graphs(*_with_kv(decode_inputs([5, 6, 7, 8])))  # 3 and 4 rows share a graph
    assert len(capture.recorded) == 2
    assert len(forward.calls) == calls + 1  # the replay, and nothing else


def test_padded_rows_have_length_0_and_slot_minus_1():
    graphs, forward, _ = make()
    graphs(*_with_kv(decode_inputs([70] * 8)))
    graphs(*_with_kv(decode_inputs([70] * 8)))
    graphs(*_with_kv(decode_inputs([65] * 5)))
    seen = forward.calls[-1]
    assert seen.seq_lens.tolist() == [65] * 5 + [0] * 3
    assert seen.slots[5:].tolist() == [-1] * 3
    assert seen.num_decodes == 8
    assert seen.max_seq_len == 128
    assert seen.cu_seqlens_q.tolist() == list(range(9))


def test_a_result_stays_valid_while_the_next_step_runs():
    graphs, _, _ = make()
    results, expected = [], []
    for step in range(6):
        token_ids, inputs = decode_inputs([9, 9], seed=step)
        results.append(graphs(token_ids, KV, inputs))
        expected.append(Forward()(token_ids, KV, inputs))
        if step:
            assert torch.equal(results[step - 1], expected[step - 1])


def test_mixed_prefill_and_oversized_steps_run_as_they_are():
    graphs, forward, capture = make(max_rows=8)
    token_ids, inputs = decode_inputs([5] * 9)
    for _ in range(3):
        graphs(token_ids, KV, inputs)
    _, mixed = decode_inputs([5, 6])
    mixed = replace(mixed, num_decodes=1)
    for _ in range(3):
        graphs(token_ids[:2], KV, mixed)
    assert capture.recorded == []
    assert forward.calls[-1] is mixed


def test_per_row_tensors_are_padded_with_their_own_value():
    graphs, _, _ = make(pads={"seat": 7})
    seats = torch.tensor([3, 1, 2])
    for step in range(4):
        token_ids, inputs = decode_inputs([5, 6, 7], seed=step)
        assert torch.equal(graphs(token_ids, KV, inputs, seat=seats), Forward()(token_ids, KV, inputs, seat=seats))


def test_a_step_that_cannot_be_recorded_runs_as_it_is():
    def refuse(run):
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs = StepGraphs(Forward(), refuse, device=torch.device("cpu"), split_tokens=SPLIT)
    for step in range(4):
        token_ids, inputs = decode_inputs([5, 6], seed=step)
        assert torch.equal(graphs(token_ids, KV, inputs), Forward()(token_ids, KV, inputs))
    assert "capturing" in graphs.refusal


def test_other_caches_than_recorded_are_refused():
    graphs, _, _ = make()
    token_ids, inputs = decode_inputs([5])
    graphs(token_ids, KV, inputs)
    with pytest.raises(AssertionError, match="caches"):
        graphs(token_ids, [None], inputs)


def _with_kv(step):
    return step[0], KV, step[1]
