"""Prompts in the steps of decode rows or in their own: what each does to the rows, and which one is kept."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from offgen.scheduling import Request, Scheduler, SchedulerConfig
from offgen.scheduling.cost_model import CostModel
from offgen.scheduling.simulate import simulate
from offgen.scheduling.step_shape import MAX_PREFILLS_IN_A_ROW, StepShape
from offgen.scheduling.workload import SimulatedRow


@dataclass
class Machine:
    """Steps that take what `cost` says; one that mixes takes `mixing` times as long, the first ones compile."""

    cost: CostModel
    mixing: float = 1.0
    compiling: int = 0

    def seconds(self, batch) -> float:
        prefill, rows = batch.num_prefill_tokens, len(batch.decode_seats)
        seconds = self.cost.seconds(num_prefill_tokens=prefill, num_decode_rows=rows, num_kv_tokens=0)
        self.compiling -= 1
        return seconds * (self.mixing if prefill and rows else 1.0) * (100.0 if self.compiling >= 0 else 1.0)


def play(rows, config, machine=None, *, checks=True):
    """The batches of a job of (prompt tokens, output tokens), its requests and its scheduler."""
    scheduler, batches, requests = Scheduler(config, now=lambda: 0.0), [], []
    for i, (num_prompt, num_output) in enumerate(rows):
        requests.append(Request(i, [i + 2] * num_prompt, max_tokens=num_output, stop_ids=frozenset([0])))
        assert scheduler.add(requests[-1]) is None
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch is not None
        if checks:
            scheduler.check()
        batches.append(batch)
        scheduler.update(batch, [1] * (sum(chunk.samples for chunk in batch.chunks) + len(batch.decode_seats)))
        if machine is not None:
            scheduler.took(batch, machine.seconds(batch))
    for request, (_, num_output) in zip(requests, rows, strict=True):
        assert len(request.output_ids) == num_output
    return batches, scheduler


def job(count=300, seed=3):
    rng = random.Random(seed)
    return [(rng.randint(20, 120), rng.randint(5, 120)) for _ in range(count)]


def config_of(shape, **options):
    defaults = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "num_blocks": 2000, "prefix_caching": False}
    return SchedulerConfig(**defaults | options, step_shape=shape)


def test_separate_steps_are_of_prompts_or_of_decode_rows():
    batches, _ = play(job(), config_of("separate"))
    assert not any(batch.chunks and batch.decode_seats for batch in batches)
    mixed, _ = play(job(), config_of("mixed"))
    assert any(batch.chunks and batch.decode_seats for batch in mixed)
    for made in (batches, mixed):
        assert sum(batch.num_prefill_tokens for batch in made) == sum(num_prompt for num_prompt, _ in job())


def test_prompts_of_separate_steps_wait_for_company():
    def is_due(num_free, num_waiting, tokens_each, is_under_way=False):
        shape = StepShape(config_of("separate", max_num_seqs=64))
        return shape.pauses_decodes(
            is_under_way=is_under_way,
            num_free=num_free,
            num_waiting=num_waiting,
            waiting_tokens=num_waiting * tokens_each,
        )

    assert not is_due(1, 50, 30)
    assert is_due(4, 50, 30)  # one seat in sixteen
    assert is_due(1, 50, 512)  # one prompt fills the step
    assert is_due(3, 2, 30)  # all that wait can start
    assert is_due(0, 50, 30, is_under_way=True)
    assert not is_due(0, 50, 30) and not is_due(9, 0, 0)


def test_decode_rows_pause_for_a_bounded_time():
    rows = [(30, 60), *[(100, 1)] * 200]  # rows of one token leave their seats free again at once
    batches, _ = play(rows, config_of("separate", max_num_seqs=4, order_policy="input"))
    steps = [i for i, batch in enumerate(batches) if 0 in batch.decode_request_ids]
    assert len(steps) == 59
    assert max(late - early for early, late in pairwise(steps)) == MAX_PREFILLS_IN_A_ROW + 1


@pytest.mark.parametrize(
    "options", [{"num_blocks": 40}, {"steps_ahead": 0, "max_num_seqs": 1}, {"chunked_prefill": False}]
)
def test_separate_steps_serve_every_row_in_every_corner(options):
    play(job(60), config_of("separate", **options))


@pytest.mark.parametrize("compiling", [0, 5])
@pytest.mark.parametrize(("mixing", "is_mixed"), [(1.0, True), (2.5, False)])
def test_the_faster_shape_is_kept(mixing, is_mixed, compiling):
    machine = Machine(CostModel(step_s=1e-3, prefill_token_s=2e-5, decode_row_s=1e-5), mixing, compiling)
    batches, scheduler = play(job(900), config_of("measured"), machine, checks=False)
    assert scheduler.step_shape == ("mixed" if is_mixed else "separate")
    late = batches[len(batches) // 2 :]
    late = [batch for batch in late if batch.chunks]
    assert all(bool(batch.decode_seats) is is_mixed for batch in late)


def test_measuring_costs_little_and_pays():
    cost = CostModel(step_s=1e-3, prefill_token_s=2e-5, decode_row_s=1e-5)

    def total(shape, mixing):
        batches, _ = play(job(900), config_of(shape), machine := Machine(cost, mixing), checks=False)
        return sum(machine.seconds(batch) for batch in batches)

    for mixing in (1.0, 2.5):
        best = min(total("mixed", mixing), total("separate", mixing))
        assert total("measured", mixing) < 1.06 * best


def test_steps_that_nobody_times_leave_the_choice_open():
    batches, scheduler = play(job(), config_of("measured"))
    assert scheduler.step_shape == "undecided"
    assert {bool(batch.decode_seats) for batch in batches if batch.chunks} == {True, False}  # it goes on trying both


def test_a_shape_that_is_not_measured_does_not_change():
    for shape, is_mixed in (("mixed", True), ("separate", False)):
        chosen = StepShape(config_of(shape))
        for _ in range(100):
            chosen.planned(has_prompts=True, has_decodes=True)
            chosen.took(100, 10, 5.0)
            chosen.took(100, 0, 0.1)
            chosen.took(0, 10, 0.1)
        assert chosen.is_decided and chosen.is_mixed is is_mixed


def test_a_simulation_with_separate_steps_makes_every_token():
    rng = random.Random(1)
    rows = [SimulatedRow([i] * rng.randint(1, 60), n := rng.randint(1, 80), n + 9) for i in range(80)]
    for shape in ("mixed", "separate", "measured"):
        result = simulate(rows, config_of(shape, max_num_seqs=8, max_model_len=200), CostModel())
        assert result.completion_tokens == sum(row.num_output_tokens for row in rows)
        assert result.prefill_tokens == sum(len(row.prompt_ids) for row in rows)
        assert result.rows == 80


def test_an_unknown_shape_is_refused():
    with pytest.raises(ValueError, match="step_shape"):
        config_of("both")
