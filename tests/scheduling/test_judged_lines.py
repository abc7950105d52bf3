"""What the scheduler promises of whole jobs, as counts."""

from __future__ import annotations

import random

import pytest

from offgen.scheduling import Request, Scheduler, SchedulerConfig
from offgen.scheduling.cost_model import CostModel
from offgen.scheduling.simulate import simulate
from offgen.scheduling.workload import SimulatedRow, read_workload

BLOCK = 16


def grouped_rows(num_groups, rows_per_group, *, num_shared, num_own, num_output, seed=0):
    rng = random.Random(seed)
    prefixes = [[rng.randrange(30_000) for _ in range(num_shared)] for _ in range(num_groups)]
    rows = [
        SimulatedRow(
            prefix + [rng.randrange(30_000) for _ in range(rng.randint(*num_own))], rng.randint(*num_output), 64
        )
        for prefix in prefixes
        for _ in range(rows_per_group)
    ]
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize("max_num_batched_tokens", [256, 2048, 50_000])
@pytest.mark.parametrize("max_num_seqs", [1, 16, 64])
def test_rows_with_one_prefix_compute_it_once(max_num_seqs, max_num_batched_tokens):
    rows = grouped_rows(1, 64, num_shared=512, num_own=(20, 60), num_output=(32, 32))
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, num_blocks=1000)
    least = 512 + sum(len(row.prompt_ids) - 512 for row in rows)
    assert simulate(rows, config, CostModel()).prefill_tokens <= 1.05 * least
    assert (
        simulate(rows, SchedulerConfig(num_blocks=4000, prefix_caching=False), CostModel()).prefill_tokens > 8 * least
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_shuffled_prefix_groups_are_regrouped(seed):
    rows = grouped_rows(50, 20, num_shared=256, num_own=(10, 40), num_output=(4, 60), seed=seed)
    num_blocks = 50 * (256 // BLOCK) // 10 + 16  # a tenth of the prefixes, and a little to work in
    least = 50 * 256 + sum(len(row.prompt_ids) - 256 for row in rows)
    computed = {}
    for order_policy in ("auto", "prefix", "input"):
        config = SchedulerConfig(max_num_seqs=16, max_model_len=512, num_blocks=num_blocks, order_policy=order_policy)
        result = simulate(rows, config, CostModel())
        assert result.rows == len(rows)
        computed[order_policy] = result.prefill_tokens
    assert computed["auto"] <= 1.15 * least
    assert computed["prefix"] <= 1.15 * least
    assert computed["input"] > 3 * least


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_continuous_batching_of_heavy_tailed_lengths_is_short_and_without_bubbles(seed):
    rows = read_workload("lognormal:n=2000,median=64,sigma=1,max=2048,prompt=100", seed=seed)
    results = {}
    for batching in ("static", "continuous"):
        config = SchedulerConfig(max_num_seqs=16, num_blocks=3000, batching=batching)
        results[batching] = simulate(rows, config, CostModel())
    assert results["continuous"].completion_tokens_per_s >= 3.2 * results["static"].completion_tokens_per_s
    assert results["continuous"].bubble_ratio_before_tail < 0.05
    assert results["static"].bubble_ratio > 0.5
    # and in steps alone, whatever they cost
    assert results["static"].sampling_steps >= 3.2 * results["continuous"].sampling_steps


def test_known_limits_make_a_short_tail():
    """Where max_tokens tells the length, the longest rows start first and the steps stay full to the end."""
    lengths = [row.num_output_tokens for row in read_workload("lognormal:n=2000,median=64,sigma=1,max=2048")]
    rows = [SimulatedRow([7, place], length, length) for place, length in enumerate(lengths)]
    ratios = {}
    for order_policy in ("auto", "input"):
        config = SchedulerConfig(max_num_seqs=64, num_blocks=20_000, order_policy=order_policy)
        ratios[order_policy] = simulate(rows, config, CostModel()).bubble_ratio
    assert ratios["auto"] < 0.01
    assert ratios["auto"] < ratios["input"]


@pytest.mark.parametrize("workload", ["lognormal:n=1500,median=64,sigma=1,max=2048", "uniform:n=1500,min=50,max=300"])
def test_a_small_pool_is_full_and_preemption_rare(workload):
    rows = read_workload(workload)
    config = SchedulerConfig(max_num_seqs=128, num_blocks=600, order_policy="input")
    result = simulate(rows, config, CostModel())
    assert result.rows == 1500
    assert result.kv_occupancy > 0.8
    assert result.num_preemptions < 0.05 * result.rows
    assert result.recomputed_tokens < 0.05 * (result.prefill_tokens + result.completion_tokens)


def test_samples_of_one_prompt_compute_it_once():
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=8, num_blocks=100))
    prompt = list(range(100))
    for request_id in range(4):
        scheduler.add(Request(request_id, prompt, max_tokens=4))
    batch = scheduler.schedule()
    assert batch is not None
    assert [chunk.length for chunk in batch.chunks] == [100, 4, 4, 4]
