"""The whole sampler: each row by its own parameters, whatever sits beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from offgen_kernels.reference_sampling import sample as reference_op
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from offgen.sampling.sampler import Sampler

CPU = torch.device("cpu")
VOCAB = 700


def logits_of(num_rows: int, num_columns: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(seed)) * 3


def zoo(make: Callable[..., Any], num: int, seed: int = 0) -> list[Any]:
    """Rows that use everything, in many combinations."""
    rng = random.Random(seed)
    rows = []
    for row_id in range(num):
        outputs = [rng.randrange(VOCAB) for _ in range(rng.randrange(6))]
        rows.append(
            make(
                row_id=row_id,
                sample_index=rng.randrange(3),
                prompt_ids=[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))],
                output_ids=outputs,
                eos_ids=frozenset({2, 7}),
                seed=rng.choice([0, 0, 42]),
                temperature=rng.choice([0.0, 1e-12, 1e-3, 0.7, 1.0, 100.0]),
                top_k=rng.choice([0, -1, 1, 50, 600, VOCAB, VOCAB + 1]),
                top_p=rng.choice([0.1, 0.9, 1.0, 1.0]),
                min_p=rng.choice([0.0, 0.0, 0.2]),
                repetition_penalty=rng.choice([1.0, 1.0, 2.0]),
                presence_penalty=rng.choice([0.0, 0.0, 1.5]),
                frequency_penalty=rng.choice([0.0, 0.0, 0.7]),
                min_tokens=rng.choice([0, 3, 6]),
                stop_token_ids=rng.choice([(), (5, 9)]),
                logit_bias=rng.choice([(), ((4, 50.0), (6, -100.0))]),
                bad_words_token_ids=rng.choice([(), ((3,), (*outputs[-1:], 11))]),
                logprobs=rng.choice([None, 0, 3]),
            )
        )
    return rows


def run(samples: list[Any], steps: list[torch.Tensor], order: list[int]) -> dict[int, list[Any]]:
    """Tokens and logprobs of each sample over some steps; `order` says who sits where."""
    sampler = Sampler(len(order), VOCAB, CPU)
    for seat, one in enumerate(order):
        samples[one].enter(sampler, seat)
    found: dict[int, list[Any]] = {one: [] for one in order}
    for logits in steps:
        sampled = sampler.sample(logits[order], range(len(order)))
        assert not sampled.non_finite.any()
        logprobs = sampled.logprobs or [None] * len(order)
        for place, one in enumerate(order):
            found[one].append((sampled.token_ids[place].item(), logprobs[place]))
    return found


def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(make: Callable[..., Any]) -> None:
    samples = zoo(make, 64)
    steps = [logits_of(64, seed=step) for step in range(8)]
    whole = run(samples, steps, list(range(64)))
    shuffled = run(samples, steps, random.Random(1).sample(range(64), 64))
    assert whole == shuffled
    for one in range(64):
        assert run(samples, steps, [one])[one] == whole[one], samples[one]


def test_a_row_that_left_and_came_back_goes_on_as_before(make: Callable[..., Any]) -> None:
    samples = zoo(make, 32, seed=3)
    begun = [list(sample.output_ids) for sample in samples]
    steps = [logits_of(32, seed=step) for step in range(6)]
    whole = run(samples, steps, list(range(32)))
    sampler = Sampler(48, VOCAB, CPU)
    seats, free = list(range(32)), list(range(32, 48))
    for one, sample in enumerate(samples):
        sample.enter(sampler, seats[one])
    for step, logits in enumerate(steps):
        for one in range(step % 3, 32, 3):  # preempted, and seated again elsewhere
            sampler.leave(seats[one])
            free.append(seats[one])
            seats[one] = free.pop(0)
            samples[one].enter(sampler, seats[one])
        for one, token in enumerate(sampler.sample(logits, seats).token_ids.tolist()):
            samples[one].output_ids.append(token)
    for one, sample in enumerate(samples):
        assert sample.output_ids == [*begun[one], *(token for token, _ in whole[one])]


def test_rows_of_different_seeds_ids_and_samples_differ_and_equal_keys_agree(
    make: Callable[..., Any], once: Callable[..., Any]
) -> None:
    same = torch.zeros(1, VOCAB).expand(6, -1)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 2), (0, 0, 0)]
    samples = [make(seed=s, row_id=r, sample_index=i, temperature=1.0) for s, r, i in keys]
    tokens = once(same, samples).token_ids.tolist()
    assert tokens[0] == tokens[5]
    assert len(set(tokens[:5])) == 5


def test_greedy_rows_are_never_divided(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = logits_of(6)
    logits[:, 3] = -torch.inf
    logits[:, 0] = 3e38
    logits[:, 1] = -3e38
    temperatures = [0.0, 1e-12, 1e-5, 1e-3, 1.0, 100.0]
    sampled = once(logits, [make(temperature=t, logprobs=2) for t in temperatures])
    assert sampled.token_ids[:4].tolist() == [0] * 4
    assert not sampled.non_finite.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_reported_and_the_others_stand(
    make: Callable[..., Any], once: Callable[..., Any], value: float, temperature: float
) -> None:
    samples = zoo(make, 8)
    samples[3] = make(temperature=temperature, top_p=0.9, top_k=5, min_p=0.1, logprobs=3, repetition_penalty=1.3)
    logits = logits_of(8)
    good = once(logits, samples)
    broken = logits.clone()
    broken[3, 600] = value
    bad = once(broken, samples)
    assert bad.non_finite.tolist() == [row == 3 for row in range(8)]
    others = [row for row in range(8) if row != 3]
    assert bad.token_ids[others].tolist() == good.token_ids[others].tolist()
    for row in others:
        assert bad.logprobs[row] == good.logprobs[row]


def test_a_masked_column_is_fine_but_nothing_left_is_not(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = torch.full((3, 8), -torch.inf)
    logits[0, 5] = logits[1, 5] = 1.0
    samples = [make(temperature=1.0), make(bad_words_token_ids=((5,),)), make()]
    sampled = once(logits, samples)
    assert sampled.non_finite.tolist() == [False, True, True]
    assert sampled.token_ids[0] == 5


def test_penalties_are_those_of_transformers_and_of_the_papers(
    make: Callable[..., Any], once: Callable[..., Any]
) -> None:
    """Repetition sees the prompt; presence and frequency see the output only."""
    logits = logits_of(1, 50)
    prompt, output = [3, 3, 7, 9], [9, 11, 11, 11]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[*prompt, *output]]), logits.clone())
    counts = torch.bincount(torch.tensor(output), minlength=50)
    expected = expected - 0.3 * counts - 0.9 * (counts > 0)
    params = {"repetition_penalty": 1.7, "frequency_penalty": 0.3, "presence_penalty": 0.9}
    for column in range(50):  # the sampler shows which is largest: ban the others, lift two
        for other in (column + 1, column + 17):
            pair = torch.full_like(logits, -torch.inf)
            pair[0, column], pair[0, other % 50] = logits[0, column], logits[0, other % 50]
            token = once(pair, [make(prompt_ids=prompt, output_ids=output, **params)]).token_ids.item()
            best = max((column, other % 50), key=lambda one: expected[0, one])
            assert token == best


def test_one_rows_penalty_does_not_touch_the_other(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = torch.tensor([[1.0, 1.5, 0.9, 0.0]]).repeat(2, 1)
    plain, penalized = make(prompt_ids=[1]), make(prompt_ids=[1], repetition_penalty=2.0)
    assert once(logits, [plain, penalized]).token_ids.tolist() == [1, 0]
    assert once(logits, [penalized, plain]).token_ids.tolist() == [0, 1]


def test_penalties_follow_what_was_sampled(make: Callable[..., Any]) -> None:
    sampler = Sampler(2, 4, CPU)
    make(frequency_penalty=1.0).enter(sampler, 0)
    make(repetition_penalty=3.0, prompt_ids=[3]).enter(sampler, 1)
    logits = torch.tensor([[2.0, 1.5, 0.5, 0.1], [3.0, 2.0, 1.5, 3.5]])
    tokens = torch.stack([sampler.sample(logits, [0, 1]).token_ids for _ in range(5)]).T.tolist()
    assert tokens == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 3]]


def test_ends_are_held_back_until_min_tokens(make: Callable[..., Any]) -> None:
    sampler = Sampler(3, 10, CPU)
    make(min_tokens=2, stop_token_ids=(1,), eos_ids=frozenset({0, 99})).enter(sampler, 0)
    make(min_tokens=2, ignore_eos=True, eos_ids=frozenset({0})).enter(sampler, 1)
    make(eos_ids=frozenset({0})).enter(sampler, 2)
    logits = torch.arange(10, 0, -1).float().repeat(3, 1)
    tokens = torch.stack([sampler.sample(logits, [0, 1, 2]).token_ids for _ in range(3)]).T.tolist()
    assert tokens == [[2, 2, 0], [0, 0, 0], [0, 0, 0]]


def test_bias_is_added_and_bad_words_are_never_finished(make: Callable[..., Any]) -> None:
    sampler = Sampler(4, 6, CPU)
    make(logit_bias=((4, 10.0), (0, -100.0))).enter(sampler, 0)
    make(bad_words_token_ids=((0,),)).enter(sampler, 1)
    make(bad_words_token_ids=((0, 0, 0), (1, 2), (0, 0, 0, 1))).enter(sampler, 2)
    make(bad_words_token_ids=((5, 0),), prompt_ids=[5]).enter(sampler, 3)  # begun in the prompt: not the output's
    logits = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).repeat(4, 1)
    tokens = torch.stack([sampler.sample(logits, range(4)).token_ids for _ in range(5)]).T.tolist()
    assert tokens == [[4] * 5, [1] * 5, [0, 0, 1, 0, 0], [0] * 5]


def test_a_seat_keeps_nothing_of_who_sat_there(make: Callable[..., Any]) -> None:
    sampler = Sampler(1, 6, CPU)
    logits = torch.tensor([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]])
    make(logit_bias=((3, 99.0),), frequency_penalty=2.0, bad_words_token_ids=((0, 1),), min_tokens=9, logprobs=1).enter(
        sampler, 0
    )
    sampler.sample(logits, [0])
    for _ in range(2):
        make().enter(sampler, 0)
        sampled = sampler.sample(logits, [0])
        assert sampled.token_ids.tolist() == [0]
        assert sampled.logprobs is None
    make(frequency_penalty=2.0).enter(sampler, 0)
    assert sampler.sample(logits, [0]).token_ids.tolist() == [0]


def test_sampled_frequencies_follow_the_softmax(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = logits_of(1, 32).expand(4000, -1)
    tokens = once(logits, [make(temperature=0.8, row_id=row) for row in range(4000)]).token_ids
    expected = (logits[0] / 0.8).softmax(-1) * 4000
    counts = torch.bincount(tokens, minlength=32)
    big = expected > 5
    chi = ((counts[big] - expected[big]) ** 2 / expected[big]).sum()
    assert chi < 3 * big.sum()


def test_logits_are_left_as_they_were(make: Callable[..., Any], once: Callable[..., Any]) -> None:
    logits = logits_of(16)
    before = logits.clone()
    once(logits, zoo(make, 16))
    assert torch.equal(logits, before)


def test_seats_may_be_entered_inside_and_outside_of_inference_mode(make: Callable[..., Any]) -> None:
    """Storage that grew within a step must still take what comes between steps."""
    sampler = Sampler(4, 600, CPU)
    logits = logits_of(2, 600)
    make(repetition_penalty=1.2, frequency_penalty=0.1, prompt_ids=list(range(300))).enter(sampler, 0)
    make(bad_words_token_ids=((1, 2),)).enter(sampler, 1)
    for _ in range(600):
        sampler.sample(logits, [0, 1])
    make(repetition_penalty=1.2, presence_penalty=0.1, prompt_ids=list(range(500))).enter(sampler, 2)
    with torch.inference_mode():
        make(frequency_penalty=0.1).enter(sampler, 3)
        sampler.sample(logits, [2, 3])
    sampler.leave(0)
    make(frequency_penalty=0.1).enter(sampler, 0)
    sampler.sample(logits, [0, 1])


def test_a_devices_own_op_gets_edited_logits_and_each_rows_parameters(make: Callable[..., Any]) -> None:
    samples = zoo(make, 40, seed=9)
    logits = logits_of(40)
    logits[5, 7] = torch.nan
    own, here = Sampler(40, VOCAB, CPU, op=reference_op), Sampler(40, VOCAB, CPU)
    for sampler in (own, here):
        for seat, sample in enumerate(samples):
            sample.enter(sampler, seat)
    for _ in range(3):
        by_op, by_torch = own.sample(logits, range(40)), here.sample(logits, range(40))
        assert by_op.non_finite.tolist() == by_torch.non_finite.tolist()
        greedy = [row for row in range(40) if samples[row].params.is_greedy]
        assert by_op.token_ids[greedy].tolist() == by_torch.token_ids[greedy].tolist()
        assert len(by_op.logprobs) == 40


def test_rows_that_the_op_can_do_alone_have_inputs_that_follow_their_tokens(make: Callable[..., Any]) -> None:
    logits = logits_of(3)
    here, apart = Sampler(4, VOCAB, CPU, op=reference_op), Sampler(4, VOCAB, CPU, op=reference_op)
    for sampler in (here, apart):
        for seat, temperature in enumerate([0.0, 0.9, 1.3]):
            make(temperature=temperature, row_id=seat, output_ids=[1] * seat).enter(sampler, seat)
    for step in range(3):
        told = here.plain_inputs([0, 1, 2])
        assert told is not None
        assert told.positions.tolist() == [step, step + 1, step + 2]
        taken = here.take([0, 1, 2], *told.run(reference_op, logits))
        assert taken.token_ids.tolist() == apart.sample(logits, [0, 1, 2]).token_ids.tolist()
        assert taken.logprobs is None


def test_rows_with_edits_or_log_probabilities_are_not_the_ops_alone(make: Callable[..., Any]) -> None:
    sampler = Sampler(6, VOCAB, CPU, op=reference_op)
    edits = [
        {"repetition_penalty": 1.1},
        {"logit_bias": ((3, 1.0),)},
        {"bad_words_token_ids": ((3,),)},
        {"logprobs": 0},
        {"min_tokens": 2, "stop_token_ids": (5,)},
    ]
    for seat, edit in enumerate([*edits, {}]):
        make(**edit).enter(sampler, seat)
    assert all(sampler.plain_inputs([seat, 5]) is None for seat in range(5))
    assert sampler.plain_inputs([5]) is not None
    for _ in range(2):
        sampler.sample(logits_of(2), [4, 5])
    told = sampler.plain_inputs([4, 5])  # it may end now
    assert told is not None and told.positions.tolist() == [2, 2]
    without = Sampler(1, VOCAB, CPU)
    make().enter(without, 0)
    assert without.plain_inputs([0]) is None


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_columns", [49_152, 50_257, 151_936])
def test_real_vocabularies_and_threads_change_no_bit(
    make: Callable[..., Any], num_columns: int, num_threads: int
) -> None:
    rng = random.Random(1)
    logits = logits_of(16, num_columns, seed=num_columns)
    samples = [
        make(
            row_id=row,
            prompt_ids=[row, 5],
            temperature=rng.choice([0.0, 0.7, 1.0, 2.0]),
            top_k=rng.choice([0, 0, 20, 500]),
            top_p=rng.choice([1.0, 0.9, 0.999]),
            min_p=rng.choice([0.0, 0.01]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            logprobs=rng.choice([None, 3]),
        )
        for row in range(16)
    ]

    def tokens(rows: list[int]) -> list[Any]:
        sampler = Sampler(len(rows), num_columns, CPU)
        for seat, row in enumerate(rows):
            samples[row].enter(sampler, seat)
        sampled = sampler.sample(logits[rows], range(len(rows)))
        return list(zip(sampled.token_ids.tolist(), sampled.logprobs or [None] * len(rows), strict=True))

    torch.set_num_threads(1)
    alone = [tokens([row])[0] for row in range(16)]
    torch.set_num_threads(num_threads)
    try:
        assert tokens(list(range(16))) == alone
        assert tokens(list(range(5, 11))) == alone[5:11]
    finally:
        torch.set_num_threads(1)
