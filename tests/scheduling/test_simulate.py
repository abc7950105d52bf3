"""Workloads, cost models, and that a simulation is the scheduler's own run."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import asdict

import pytest
from typer import Typer
from typer.testing import CliRunner

from offgen.errors import UsageError
from offgen.scheduling import Request, Scheduler, SchedulerConfig
from offgen.scheduling.cost_model import CostModel, StepSample, fit
from offgen.scheduling.simulate import limit_s, simulate
from offgen.scheduling.workload import SimulatedRow, read_workload


def slow_simulation(rows, config, cost):
    """Steps, makespan and output tokens, counted naively: every row's id is looked at in every step."""
    scheduler, requests, now, steps = Scheduler(config, now=lambda: 0.0), [], 0.0, 0
    lengths = {i: row.num_output_tokens for i, row in enumerate(rows)}
    for i, row in enumerate(rows):
        requests.append(Request(i, row.prompt_ids, max_tokens=row.max_tokens, stop_ids=frozenset([1])))
        assert scheduler.add(requests[-1]) is None
    while scheduler.has_work:
        batch = scheduler.schedule()
        in_step = [c.request_id for c in batch.chunks if c.samples] + list(batch.decode_request_ids)
        ids = [int(len(requests[i].output_ids) + 1 == lengths[i]) for i in in_step]
        now += cost.seconds(
            num_prefill_tokens=sum(chunk.length for chunk in batch.chunks),
            num_decode_rows=len(batch.decode_seats),
            num_kv_tokens=sum(chunk.start + chunk.length for chunk in batch.chunks)
            + sum(requests[i].num_tokens for i in batch.decode_request_ids),
        )
        steps += 1
        scheduler.update(batch, ids)
    return steps, now, sum(len(request.output_ids) for request in requests)


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("step_shape", ["mixed", "separate"])
@pytest.mark.parametrize("num_blocks", [40, 400])
def test_a_simulation_equals_naive_stepping(num_blocks, step_shape, batching):
    rng = random.Random(5)
    rows = [
        SimulatedRow([i] * rng.randint(1, 60), n := rng.randint(1, 80), n + rng.choice([0, 0, 9])) for i in range(60)
    ]
    config = SchedulerConfig(
        max_num_seqs=8, max_num_batched_tokens=64, max_model_len=160, num_blocks=num_blocks, batching=batching,
        step_shape=step_shape,
    )  # fmt: skip
    result = simulate(rows, config, CostModel())
    steps, makespan, num_output = slow_simulation(rows, config, CostModel())
    if batching == "continuous":  # in a static batch the naive count reads the KV of ended rows as if they had stopped
        assert result.makespan_s == pytest.approx(makespan)
    assert (result.steps, result.completion_tokens) == (steps, num_output)
    assert num_output == sum(row.num_output_tokens for row in rows)


@pytest.mark.parametrize("batching", ["continuous", "static", "dynamic"])
@pytest.mark.parametrize("max_num_seqs", [1, 4, 16])
@pytest.mark.parametrize("step_shape", ["mixed", "separate"])
def test_steps_taken_at_once_are_as_steps_one_by_one(step_shape, max_num_seqs, batching, monkeypatch):
    rows = read_workload("lognormal:n=150,median=30,sigma=1,max=400,prompt=20,rate=20")
    rows += read_workload("list:3/200/50,prompt=30")
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs, max_model_len=300, num_blocks=120, batching=batching, order_policy="input",
        step_shape=step_shape, window=40,
    )  # fmt: skip
    at_once = asdict(simulate(rows, config, CostModel()))
    monkeypatch.setattr("offgen.scheduling.simulate._Player._skip", lambda self: None)
    one_by_one = asdict(simulate(rows, config, CostModel()))
    assert one_by_one.pop("batching") == batching
    for name, value in one_by_one.items():
        assert at_once[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("batching", ["continuous", "static", "dynamic"])
@pytest.mark.parametrize("workload", ["fixed:n=64,length=40,prompt=50", "uniform:n=100,max=90", "list:1/2/300,n=40"])
def test_nothing_beats_the_limit(workload, batching):
    rows = read_workload(workload)
    config = SchedulerConfig(max_num_seqs=16, num_blocks=2000, batching=batching)
    result = simulate(rows, config, CostModel())
    assert result.makespan_s >= limit_s(rows, config, CostModel()) * (1 - 1e-9)
    assert result.rows == len(rows) and result.refused == 0


def test_rows_that_come_over_time_wait_for_nothing_else():
    rows = [SimulatedRow([i], 1, 1, arrival_s=10.0 * i) for i in range(5)]
    result = simulate(rows, SchedulerConfig(batching="dynamic", dynamic_wait_s=0.5), CostModel())
    assert result.makespan_s == pytest.approx(40.5 + CostModel().step_s, abs=0.01)
    assert result.ttft_s["max"] == pytest.approx(0.5 + CostModel().step_s, abs=0.01)


def test_a_fit_finds_the_costs_that_made_the_steps():
    rng = random.Random(0)
    true = CostModel(4e-3, 3e-5, 2e-4, 5e-11, 46_080)
    samples = []
    for _ in range(200):
        prefill, rows, kv = rng.choice([0, 0, rng.randint(1, 2048)]), rng.randint(0, 64), rng.randint(0, 60_000)
        seconds = true.seconds(num_prefill_tokens=prefill, num_decode_rows=rows, num_kv_tokens=kv)
        samples.append(StepSample(prefill, rows, kv * 46_080, seconds * rng.uniform(0.95, 1.05)))
    found = fit(samples, kv_bytes_per_token=46_080)
    for name in ("step_s", "prefill_token_s", "decode_row_s", "kv_byte_s"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.25)
    assert CostModel.from_json(found.to_json()) == found


def test_a_fit_has_no_negative_cost_and_needs_samples():
    samples = [StepSample(0, rows, 0, 0.01 - 1e-5 * rows) for rows in range(1, 20)]
    found = fit(samples)
    assert min(found.step_s, found.prefill_token_s, found.decode_row_s, found.kv_byte_s) >= 0
    with pytest.raises(ValueError, match="no steps"):
        fit([])


@pytest.mark.parametrize("text", ["", "[]", '{"steps": 1}', '{"step_s": -1}', '{"step_s": "1"}', '{"step_s": NaN}'])
def test_what_is_no_cost_model_is_refused(text):
    with pytest.raises(UsageError, match=r"not JSON|not a cost model|must be a number"):
        CostModel.from_json(text, where="cost.json")


def test_distributions_are_what_they_say():
    lengths = [row.num_output_tokens for row in read_workload("lognormal:n=4000,median=64,sigma=1,max=2048")]
    assert 58 < statistics.median(lengths) < 70 and max(lengths) <= 2048 and min(lengths) >= 1
    assert statistics.mean(lengths) == pytest.approx(105, rel=0.1)
    assert read_workload("lognormal:n=9,median=5,sigma=1", seed=1) == read_workload(
        "lognormal:n=9,median=5,sigma=1", seed=1
    )
    assert {row.num_output_tokens for row in read_workload("uniform:n=300,min=3,max=5")} == {3, 4, 5}
    assert [row.num_output_tokens for row in read_workload("list:8/16/400")] == [8, 16, 400]
    assert {row.max_tokens for row in read_workload("list:8/16/400")} == {400}
    fixed = read_workload("fixed:n=3,length=7,prompt=30,shared=20,groups=1")
    assert all(row.prompt_ids[:20] == fixed[0].prompt_ids[:20] for row in fixed)
    assert len({row.prompt_ids[25] for row in fixed}) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("lognormal:n=2000", "`median` is missing"),
        ("lognormal:median=a,sigma=1", "NAME=NUMBER"),
        ("uniform:max=5,sigma=1", "`sigma` is unknown"),
        ("fixed:length=4,n=0", "at least 1"),
        ("fixed:length=4,prompt=5,shared=5", "shared"),
        ("gaussian:n=5", "cannot be read"),
        ("nowhere.jsonl", "cannot be read"),
    ],
)
def test_a_senseless_workload_is_refused(source, message):
    with pytest.raises(UsageError, match=message):
        read_workload(source)


def test_files_give_ids_or_counts(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [
        {"prompt_token_ids": [1, 2, 3], "max_tokens": 5},
        {"prompt_tokens": 4, "completion_tokens": 2, "max_tokens": 9},
        {"prompt_tokens": 4, "completion_tokens": 3},
        {"prompt_tokens": None, "completion_tokens": None, "finish_reason": "error"},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    rows = read_workload(str(path))
    assert [(len(row.prompt_ids), row.num_output_tokens, row.max_tokens) for row in rows] == [
        (3, 5, 5),
        (4, 2, 9),
        (4, 3, 3),
    ]
    for bad in (
        "{",
        "[1]",
        '{"prompt_tokens": 1}',
        '{"prompt_tokens": 0, "max_tokens": 1}',
        '{"prompt_token_ids": [-1]}',
    ):
        path.write_text('{"prompt_tokens": 1, "max_tokens": 1}\n' + bad)
        with pytest.raises(UsageError, match=r"rows\.jsonl:2"):
            read_workload(str(path))


@pytest.fixture
def run():
    from offgen.cli.simulate import simulate as command

    app = Typer()
    app.command()(command)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_the_command_shows_modes_side_by_side(run):
    shown = run("lognormal:n=200,median=20,sigma=1,max=300", "--max-num-seqs", "8")
    assert shown.exit_code == 0
    for word in (
        "static",
        "dynamic",
        "continuous",
        "makespan",
        "speedup",
        "limit",
        "bubble ratio",
        "preemptions",
        "TTFT",
        "TPOT",
    ):
        assert word in shown.stdout


def test_the_command_prints_json_and_takes_a_cost_model(run, tmp_path):
    cost = tmp_path / "cost.json"
    cost.write_text(CostModel(step_s=1.0, prefill_token_s=0, decode_row_s=0, kv_byte_s=0).to_json())
    shown = run("fixed:n=4,length=5", "--json", "--mode", "continuous", "--cost-model", str(cost))
    values = json.loads(shown.stdout)
    assert list(values["modes"]) == ["continuous"]
    assert values["limit_s"] == values["modes"]["continuous"]["makespan_s"] == 5.0
    assert values["modes"]["continuous"]["bubble_ratio"] == 0.0


@pytest.mark.parametrize(
    "arguments", [["--mode", "magic"], ["--order-policy", "magic"], ["--cost-model", "nowhere.json"]]
)
def test_the_command_refuses_senseless_options(run, arguments):
    shown = run("fixed:n=4,length=5", *arguments)
    assert isinstance(shown.exception, UsageError)
