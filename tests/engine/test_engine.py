"""The engine against transformers, and against itself in other circumstances."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offgen.engine import Engine, EngineOptions, open_engine
from offgen.records import Prompt, RowError
from tests.engine.tiny import CONTEXT, greedy, outputs, prompt_of, random_prompts

EngineOf = Callable[..., Engine]


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return random_prompts(24, max_tokens=20)


@pytest.fixture(scope="module")
def expected(oracle: Any, prompts: list[Prompt]) -> dict[tuple[int, int], list[int]]:
    return {(p.row.row_id, 0): greedy(oracle, p) for p in prompts}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"max_num_batched_tokens": 7, "max_num_seqs": 4},
        {"max_num_batched_tokens": 17, "max_num_seqs": 16},
        {"chunked_prefill": False, "max_num_batched_tokens": 64},
        {"prefix_caching": False},
        {"block_size": 1, "num_blocks": 2048},
        {"block_size": 48},
        {"batching": "static", "max_num_seqs": 4},
        {"batching": "dynamic", "max_num_seqs": 4},
        {"order_policy": "input"},
        {"order_policy": "longest-first"},
        {"order_policy": "prefix"},
        {"batch_invariant": False},
        {"model_impl": "transformers"},
    ],
    ids=str,
)
def test_greedy_tokens_equal_transformers_whatever_the_batch(
    engine_of: EngineOf, prompts: list[Prompt], expected: dict[tuple[int, int], list[int]], options: dict[str, Any]
) -> None:
    assert outputs(engine_of(**options).generate(prompts)) == expected


def test_triton_kernels_give_the_tokens_of_the_cpu_path(engine_of: EngineOf) -> None:
    rows = random_prompts(5, seed=2, longest=20, max_tokens=4)
    assert outputs(engine_of(attention_backend="triton").generate(rows)) == outputs(engine_of().generate(rows))


def test_preempted_rows_come_out_as_if_nothing_had_happened(
    engine_of: EngineOf, prompts: list[Prompt], expected: dict[tuple[int, int], list[int]]
) -> None:
    engine = engine_of(num_blocks=8, prefix_caching=False)
    assert engine.max_model_len == CONTEXT
    assert outputs(engine.generate(prompts)) == expected
    assert engine.stats.num_preemptions > 0


def test_samples_depend_on_row_and_seed_alone(engine_of: EngineOf) -> None:
    def rows(n: int = 1) -> list[Prompt]:
        return [
            prompt_of(
                p.row.row_id, list(p.token_ids), temperature=0.9, top_p=0.95, top_k=40, seed=7, n=n, max_tokens=12
            )
            for p in random_prompts(12, seed=3)
        ]

    alone = outputs(engine_of(max_num_seqs=1).generate(rows()))
    shuffled = rows()
    random.Random(1).shuffle(shuffled)
    assert outputs(engine_of().generate(shuffled)) == alone
    assert outputs(engine_of(num_blocks=10, max_num_batched_tokens=16).generate(rows())) == alone
    many = outputs(engine_of().generate(rows(n=3)))
    assert {key: ids for key, ids in many.items() if key[1] == 0} == alone
    assert len({tuple(ids) for key, ids in many.items() if key[0] == 0}) == 3


@pytest.mark.parametrize("place", [0, 6, 11])
def test_a_row_that_cannot_run_is_an_error_and_the_others_finish(engine_of: EngineOf, place: int) -> None:
    rows = random_prompts(12, max_tokens=4)
    rows[place] = prompt_of(place, [5] * (CONTEXT + 1), n=2)
    done = list(engine_of().generate(rows))
    failed = [c for c in done if c.error is not None]
    assert len(done) == 13
    assert [(c.row.row_id, c.sample_index, c.error and c.error.type) for c in failed] == [
        (place, 0, "prompt_too_long"),
        (place, 1, "prompt_too_long"),
    ]
    assert all(c.text is None and c.finish_reason == "error" for c in failed)


def test_a_prompt_with_an_error_passes_through(engine_of: EngineOf) -> None:
    good, bad = random_prompts(2, max_tokens=2)
    bad = Prompt(row=bad.row, token_ids=(), params=bad.params, error=RowError("template_error", "no such filter"))
    done = {c.row.row_id: c for c in engine_of().generate([bad, good])}
    assert done[1].error == RowError("template_error", "no such filter")
    assert done[0].finish_reason == "length"


def test_the_context_and_max_tokens_are_told_apart(engine_of: EngineOf) -> None:
    rows = [
        prompt_of(0, [9] * (CONTEXT - 1), max_tokens=5, ignore_eos=True),
        prompt_of(1, [9] * (CONTEXT - 2), max_tokens=1, ignore_eos=True),
        prompt_of(2, [9] * CONTEXT, max_tokens=5, ignore_eos=True),
    ]
    done = {c.row.row_id: c for c in engine_of().generate(rows)}
    assert (done[0].num_completion_tokens, done[0].finish_reason, done[0].stop_reason) == (1, "length", "context")
    assert (done[1].num_completion_tokens, done[1].finish_reason, done[1].stop_reason) == (1, "length", "max_tokens")
    assert done[2].error is not None and done[2].error.type == "prompt_too_long"


def test_log_probabilities_are_those_of_the_model(engine_of: EngineOf, oracle: Any) -> None:
    shared = [11] * 40
    rows = [
        prompt_of(i, [*shared, i + 3], max_tokens=5, logprobs=3, prompt_logprobs=2, ignore_eos=True) for i in range(3)
    ]
    for options in ({}, {"max_num_batched_tokens": 9}):
        for completion in engine_of(**options).generate(rows):
            prompt_ids = [*shared, completion.row.row_id + 3]
            ids = prompt_ids + list(completion.token_ids)
            with torch.inference_mode():
                want = oracle(torch.tensor([ids])).logits[0].log_softmax(-1)
            assert completion.prompt_logprobs is not None and completion.logprobs is not None
            assert completion.prompt_logprobs[0] is None
            got = [*completion.prompt_logprobs[1:], *completion.logprobs]
            assert len(got) == len(ids) - 1
            for position, logprob in enumerate(got):
                assert logprob is not None and logprob.token_id == ids[position + 1]
                assert logprob.logprob == pytest.approx(float(want[position, logprob.token_id]), abs=1e-4)
                assert logprob.rank == 1 + int((want[position] > want[position, logprob.token_id]).sum())
            assert len(got[-1].top) == 3  # type: ignore[union-attr]


def test_logits_that_are_not_finite_fail_their_row_alone(oracle: Any, tmp_path: Path) -> None:
    import copy

    broken = copy.deepcopy(oracle)
    with torch.no_grad():
        broken.model.embed_tokens.weight[77] = float("nan")
    broken.config.tie_word_embeddings = False
    broken.lm_head.weight = torch.nn.Parameter(oracle.lm_head.weight.clone())
    broken.save_pretrained(tmp_path)
    rows = [prompt_of(i, [5 + i, 6, 77 if i == 1 else 8], max_tokens=4, ignore_eos=True) for i in range(3)]
    done = {c.row.row_id: c for c in open_engine(tmp_path, EngineOptions(device="cpu", num_blocks=64)).generate(rows)}
    assert done[1].error is not None and done[1].error.type == "non_finite_logits"
    assert list(done[0].token_ids) == _ids(greedy(oracle, rows[0]), 4) and done[2].error is None


def _ids(ids: list[int], count: int) -> list[int]:
    return ids[:count]


def test_stop_ends_the_run_after_a_step_and_the_engine_serves_again(engine_of: EngineOf) -> None:
    engine = engine_of(max_num_seqs=2)
    rows = random_prompts(8, max_tokens=30, ignore_eos=True)
    seen = 0
    for _ in engine.generate(rows):
        seen += 1
        engine.stop()
    assert 1 <= seen <= 2
    assert len(list(engine.generate(rows))) == 8


def test_rows_that_share_a_prefix_compute_it_once(engine_of: EngineOf) -> None:
    shared = list(range(3, 67))
    rows = [prompt_of(i, [*shared, 100 + i], max_tokens=2, ignore_eos=True) for i in range(8)]
    engine = engine_of()
    done = list(engine.generate(rows))
    assert sum(c.stats.cached_tokens for c in done) == 7 * 64
    assert engine.stats.prefill_tokens == 64 + 8
    assert outputs(done) == outputs(engine_of(prefix_caching=False).generate(rows))


def test_static_batching_wastes_the_places_of_finished_rows(engine_of: EngineOf) -> None:
    rows = [prompt_of(i, [3 + i], max_tokens=40 if i % 4 == 0 else 4, ignore_eos=True) for i in range(16)]
    ratios = {}
    for batching in ("static", "continuous"):
        engine = engine_of(batching=batching, max_num_seqs=4)
        assert len(list(engine.generate(rows))) == 16
        ratios[batching] = engine.stats.bubble_ratio
    assert ratios["continuous"] < ratios["static"]


def test_latencies_are_in_order(engine_of: EngineOf) -> None:
    for completion in engine_of(max_num_seqs=2).generate(random_prompts(6, max_tokens=3, ignore_eos=True)):
        stats = completion.stats
        assert (
            stats.queue_s is not None
            and stats.ttft_s is not None
            and stats.e2e_s is not None
            and stats.tpot_s is not None
        )
        assert 0 <= stats.queue_s <= stats.ttft_s <= stats.e2e_s
        assert stats.tpot_s == pytest.approx((stats.e2e_s - stats.ttft_s) / 2)
