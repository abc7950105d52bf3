"""Steps recorded from embedding to sampled ids: the ids of eager steps, whoever sits in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from offgen_kernels import reference_sampling

from offgen.backends.base import AttentionInputs
from offgen.backends.cuda_graphs import StepGraphs
from offgen.engine import EngineOptions, open_engine
from offgen.engine.decode_step import whole_step
from offgen.sampling.op import PADS
from tests.engine.graphed import SPLIT, FakeCapture, GraphedBackend
from tests.engine.tiny import outputs, prompt_of, random_prompts

PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.2, "top_k": 20, "seed": 6},
    {"temperature": 1.0, "top_p": 0.8, "min_p": 0.02, "seed": 7},
]


def mixed_prompts(count: int, *, seed: int = 0) -> list[Any]:
    """Rows of every kind that the op alone can sample, that end at different steps."""
    rows = random_prompts(count, seed=seed, longest=50)
    return [prompt_of(i, row.token_ids, max_tokens=3 + 7 * i % 60, **PARAMS[i % 4]) for i, row in enumerate(rows)]


@pytest.fixture
def run(folder):
    """run(prompts, …): ids by row, and the backend that made them."""

    def build(prompts, *, step_shape="mixed", **options):
        backends: list[GraphedBackend] = []

        def wrap(backend):
            backends.append(GraphedBackend(backend, step_shape))
            return backends[0]

        defaults = {"device": "cpu", "num_blocks": 256, "threads": 1, "attention_backend": "torch", "max_num_seqs": 5}
        engine = open_engine(folder, EngineOptions(**defaults | options), wrap=wrap)
        return outputs(engine.generate(prompts)), backends[0], engine

    return build


@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 9}, {"num_blocks": 14}, {"max_num_seqs": 1}], ids=str
)
def test_recorded_steps_give_the_ids_of_eager_ones(run, options):
    rows = mixed_prompts(14)
    expected, eager, _ = run(rows, enforce_eager=True)
    found, graphed, engine = run(rows, **options)
    assert found == expected
    assert eager.captures == {}
    assert graphed.captures["whole"].num_replays > 20
    assert graphed.captures["forward"].recorded == []
    assert (engine.stats.num_preemptions > 0) == ("num_blocks" in options)


@pytest.mark.parametrize(
    "edit",
    [{"repetition_penalty": 1.3}, {"logit_bias": ((9, 4.0),)}, {"bad_words_token_ids": ((7,),)}, {"logprobs": 2}],
    ids=str,
)
def test_steps_with_a_row_the_op_cannot_do_alone_are_sampled_outside(run, edit):
    plain = [*mixed_prompts(3), prompt_of(8, [8, 9], max_tokens=60, ignore_eos=True)]
    edited = prompt_of(9, [5, 6, 7], max_tokens=25, ignore_eos=True, temperature=0.7, seed=1, **edit)
    alone, graphed, _ = run([edited])
    assert graphed.graphs["whole"].num_graphs == 0
    assert graphed.captures["forward"].num_replays > 15
    expected, _, _ = run([*plain, edited], enforce_eager=True)
    found, graphed, _ = run([*plain, edited])
    assert found == expected
    assert found[9, 0] == alone[9, 0]
    assert graphed.captures["forward"].num_replays > 5
    assert graphed.captures["whole"].num_replays > 5  # once the edited row has left


def test_a_row_is_recorded_whole_once_it_may_end(run):
    rows = [prompt_of(0, [5, 6, 7], max_tokens=30, min_tokens=10)]
    expected, _, _ = run(rows, enforce_eager=True)
    found, graphed, _ = run(rows)
    assert found == expected
    assert graphed.captures["forward"].num_replays > 0
    assert (graphed.captures["whole"].num_replays > 0) == (len(found[0, 0]) > 15)


@pytest.mark.parametrize("step_shape", ["separate", "measured"])
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 9}, {"num_blocks": 14}], ids=str)
def test_prompts_in_steps_of_their_own_change_no_id(run, step_shape, options):
    rows = mixed_prompts(14)
    expected, _, _ = run(rows, enforce_eager=True)
    found, graphed, engine = run(rows, step_shape=step_shape, **options)
    assert found == expected
    assert graphed.captures["whole"].num_replays > 20
    assert engine.stats.prefill_tokens >= sum(len(row.token_ids) for row in rows)


def test_an_engine_says_how_it_computes_prompts(engine_of):
    assert engine_of().describe()["step_shape"] == "mixed"  # a CPU has nothing to choose
    assert engine_of(step_shape="separate").describe()["step_shape"] == "separate"
    assert engine_of(step_shape="measured").describe()["step_shape"] == "undecided"


def test_a_job_after_a_job_begins_anew(run):
    rows = mixed_prompts(6)
    expected, _, engine = run(rows)
    assert outputs(engine.generate(rows)) == expected


class CountingModel:
    """The logits of a row favour the id after its last one; an id of 13 makes them NaN."""

    def forward(self, token_ids, kv_caches, inputs):
        return token_ids

    def compute_logits(self, hidden):
        logits = torch.nn.functional.one_hot((hidden + 1) % 16, 16).to(torch.float32) * 5
        return logits.masked_fill((hidden == 13)[:, None], float("nan"))


def step_of(ids: list[int], start: int):
    count = len(ids)
    ints = torch.zeros(count, dtype=torch.int32)
    inputs = AttentionInputs(ints, ints, ints[:, None], ints + 1, torch.arange(count + 1), count, 1, 16)
    told = {
        "temperature": torch.tensor([0.0, 1.5] * count)[:count],
        "top_k": torch.zeros(count, dtype=torch.int32),
        "top_p": torch.ones(count),
        "min_p": torch.zeros(count),
        "keys": torch.arange(count) + 77,
        "positions": torch.arange(count) + start,
    }
    return torch.tensor(ids), [], inputs, told


def graphs_of(model: Any) -> tuple[StepGraphs, Any]:
    step = whole_step(model, reference_sampling.sample)
    return StepGraphs(step, FakeCapture(), device=torch.device("cpu"), split_tokens=SPLIT, pads=PADS), step


def test_rows_that_are_not_finite_are_told_apart():
    graphs, step = graphs_of(CountingModel())
    kv: list[Any] = []
    for turn, ids in enumerate([[1, 2, 3, 4, 5], [13, 2, 3], [1, 13, 13, 2, 1, 1], [13, 13, 13, 13, 13]] * 3):
        token_ids, _, inputs, told = step_of(ids, turn)
        found, bad = graphs(token_ids, kv, inputs, **told)
        expected, expected_bad = step(token_ids, kv, inputs, **told)
        assert bad.tolist() == expected_bad.tolist() == [one == 13 for one in ids]
        assert found.tolist() == expected.tolist()
    assert graphs.num_graphs == 3  # 8 rows in both slots; 4 come in one only


def test_each_slot_holds_its_steps_parameters_and_harmless_padding():
    seen: list[SimpleNamespace] = []

    def op(logits, **told):
        seen.append(SimpleNamespace(**told))
        return reference_sampling.sample(logits, **told)

    graphs = StepGraphs(
        whole_step(CountingModel(), op), FakeCapture(), device=torch.device("cpu"), split_tokens=SPLIT, pads=PADS
    )
    kv: list[Any] = []
    steps = [step_of([1, 2, 3, 4, 5], start) for start in (10, 20, 30, 40)]
    for token_ids, _, inputs, told in steps:
        graphs(token_ids, kv, inputs, **told)
    assert seen[-1].positions.tolist() == [40, 41, 42, 43, 44, 0, 0, 0]
    assert seen[-1].keys.tolist() == [77, 78, 79, 80, 81, 0, 0, 0]
    assert seen[-1].temperature.tolist() == [0.0, 1.5, 0.0, 1.5, 0.0, 0.0, 0.0, 0.0]
    assert seen[-1].top_p.tolist() == [1.0] * 8
    other = next(one for one in reversed(seen) if one.positions.data_ptr() != seen[-1].positions.data_ptr())
    assert other.positions.tolist() == [30, 31, 32, 33, 34, 0, 0, 0]  # the other slot still holds its own step's


def test_what_a_slot_holds_already_is_not_copied_again(monkeypatch):
    from offgen.backends import cuda_graphs

    copied: list[torch.Tensor] = []
    copy_padded = cuda_graphs._copy_padded
    monkeypatch.setattr(
        cuda_graphs, "_copy_padded", lambda static, given, pad: (copied.append(given), copy_padded(static, given, pad))
    )
    graphs, step = graphs_of(CountingModel())
    kv: list[Any] = []
    _, _, inputs, told = step_of([1, 2, 3], 0)
    for turn in range(6):
        told = told | {"positions": told["positions"] + 1}
        token_ids = torch.tensor([turn, 2, 3])
        assert graphs(token_ids, kv, inputs, **told)[0].tolist() == step(token_ids, kv, inputs, **told)[0].tolist()
    assert sum(given is told["keys"] for given in copied) == 2  # once in each slot
    fewer = {name: one[:2] for name, one in told.items()}
    _, _, two, _ = step_of([1, 2], 0)
    graphs(torch.tensor([1, 2]), kv, two, **fewer)
    graphs(torch.tensor([1, 2]), kv, two, **fewer)
    token_ids = torch.tensor([9, 8, 7])
    assert graphs(token_ids, kv, inputs, **told)[0].tolist() == step(token_ids, kv, inputs, **told)[0].tolist()
