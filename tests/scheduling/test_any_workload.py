"""Random workloads under random configurations: each output is that of its request alone, the pool is never wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_checking_runner import alone, play

from offgen.scheduling import Ending, Request, Scheduler, SchedulerConfig

VOCAB = 50


@st.composite
def configs(draw):
    """Small limits, so that every edge is met often; the pool often holds little more than one row."""
    max_model_len = draw(st.integers(20, 90))
    block_size = draw(st.sampled_from([1, 2, 3, 4, 7, 16]))
    pool_tokens = max_model_len * draw(st.sampled_from([0.7, 1, 1.2, 1.5, 2, 4]))
    return SchedulerConfig(
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.integers(1, 40)),
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=max(2, int(pool_tokens / block_size)),
        prefix_caching=draw(st.booleans()),
        chunked_prefill=draw(st.booleans()),
        batching=draw(st.sampled_from(["continuous", "continuous", "static", "dynamic"])),
        order_policy=draw(st.sampled_from(["auto", "input", "longest-first", "prefix"])),
        window=draw(st.integers(1, 12)),
        step_shape=draw(st.sampled_from(["mixed", "mixed", "separate", "measured"])),
        steps_ahead=draw(st.integers(0, 1)),
        dynamic_wait_s=0.0,
    )


def make_requests(rng, num_requests):
    """Prompts that share prefixes of all lengths, some of them equal, with every kind of ending."""
    trunk = [rng.randrange(VOCAB) for _ in range(60)]
    requests = []
    for request_id in range(num_requests):
        prompt = trunk[: rng.randint(0, 40)] + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 20))]
        if requests and rng.random() < 0.2:
            prompt = list(rng.choice(requests).prompt_ids)
        stop_ids = frozenset(rng.sample(range(VOCAB), rng.choice([0, 0, 1, 3])))
        requests.append(
            Request(
                request_id,
                prompt or [1],
                max_tokens=rng.choice([1, 2, rng.randint(1, 60)]),
                min_tokens=rng.randint(0, 6),
                stop_ids=stop_ids,
                eos_ids=frozenset(list(stop_ids)[:1]),
                reads_cache=rng.random() < 0.9,
                cache_salt=rng.choice([b"", b"", b"other model"]),
            )
        )
    return requests


def assert_as_alone(scheduler, requests, finished, refused):
    """Every request once, with the ids and the reason it has by itself."""
    max_length = scheduler.config.max_length
    for request in requests:
        if request.request_id in refused:
            assert len(request.prompt_ids) + 1 > max_length
            continue
        ids, reason = alone(
            request.prompt_ids,
            max_tokens=request.max_tokens,
            max_length=max_length,
            stop_ids=request.stop_ids,
            min_tokens=request.min_tokens,
            vocab=VOCAB,
        )
        assert finished[request.request_id] is request
        assert (request.output_ids, request.finish_reason) == (ids, reason)
        if reason == "length":
            cut_short = len(request.prompt_ids) + request.max_tokens > max_length
            assert request.stop_reason == ("context" if cut_short else "max_tokens")
        else:
            assert request.stop_reason == (None if ids[-1] in request.eos_ids else str(ids[-1]))
    assert len(finished) + len(refused) == len(requests)


def assert_drained(scheduler):
    assert not scheduler.has_work
    assert scheduler.num_live_blocks == scheduler.num_running == scheduler.num_waiting == 0
    assert scheduler.num_free_blocks + scheduler.num_cached_blocks == scheduler.config.num_blocks


EXAMPLES = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MANY = settings(EXAMPLES, max_examples=2500)


def make_scheduler(config, *, plans):
    """Without a memory plan every row that fits now starts, and preemptions are common."""
    scheduler = Scheduler(config)
    if not plans:
        scheduler._plan.admits = lambda *args, **kwargs: True
    return scheduler


def outputs_are_as_alone(config, seed, num_requests, trickle, plans, *, failing=0.0):
    """failing: share of the batches that run out of memory, however far they came; their rows start again, with what
    they had."""
    rng = random.Random(seed)
    requests = make_requests(rng, num_requests)
    scheduler = make_scheduler(config, plans=plans)

    def fails(_):
        can_shrink = scheduler._limits.num_tokens > 1
        return rng.randrange(3) if can_shrink and rng.random() < failing else None

    _, finished, refused = play(
        scheduler,
        requests,
        vocab=VOCAB,
        lag=lambda _: rng.random() < 0.7,
        trickle=trickle,
        fails=fails if failing else None,
    )
    assert_as_alone(scheduler, requests, finished, refused)
    assert_drained(scheduler)


WORKLOADS = {
    "config": configs(),
    "seed": st.integers(0, 2**32),
    "num_requests": st.integers(1, 20),
    "trickle": st.sampled_from([None, None, 1, 3]),
    "plans": st.booleans(),
}


@EXAMPLES
@given(**WORKLOADS)
def test_outputs_are_those_of_each_request_alone(config, seed, num_requests, trickle, plans):
    outputs_are_as_alone(config, seed, num_requests, trickle, plans)


@pytest.mark.slow
@MANY
@given(**WORKLOADS)
def test_outputs_are_those_of_each_request_alone_at_length(config, seed, num_requests, trickle, plans):
    outputs_are_as_alone(config, seed, num_requests, trickle, plans)


@EXAMPLES
@given(**WORKLOADS)
def test_a_batch_that_is_taken_back_changes_no_output(config, seed, num_requests, trickle, plans):
    outputs_are_as_alone(config, seed, num_requests, trickle, plans, failing=0.1)


@pytest.mark.slow
@MANY
@given(**WORKLOADS)
def test_a_batch_that_is_taken_back_changes_no_output_at_length(config, seed, num_requests, trickle, plans):
    outputs_are_as_alone(config, seed, num_requests, trickle, plans, failing=0.1)


@EXAMPLES
@given(config=configs(), seed=st.integers(0, 2**32))
def test_endings_from_outside_win_and_harm_nobody(config, seed):
    rng = random.Random(seed)
    requests = make_requests(rng, 12)
    doomed = {request.request_id: rng.choice(["stop", "error"]) for request in requests if rng.random() < 0.4}

    def endings(batch, ids):
        in_batch = [chunk.request_id for chunk in batch.chunks] + list(batch.decode_request_ids)
        return {i: Ending(doomed[i], "STOP") for i in in_batch if i in doomed and rng.random() < 0.3}

    scheduler = make_scheduler(config, plans=False)
    _, finished, refused = play(scheduler, requests, vocab=VOCAB, endings=endings)
    untouched = [r for r in requests if r.stop_reason != "STOP"]
    kept = {r.request_id: r for r in untouched if r.request_id not in refused}
    assert_as_alone(scheduler, untouched, kept, refused)
    assert len(finished) + len(refused) == len(requests)
    for request in requests:
        if request.stop_reason == "STOP":
            assert request.finish_reason == doomed[request.request_id]
    assert_drained(scheduler)


@EXAMPLES
@given(config=configs(), seed=st.integers(0, 2**32), num_steps=st.integers(0, 30))
def test_all_that_is_unfinished_can_leave_at_any_time(config, seed, num_steps):
    rng = random.Random(seed)
    requests = make_requests(rng, 12)
    scheduler = make_scheduler(config, plans=False)
    taken = [request for request in requests if scheduler.room and scheduler.add(request) is None]
    finished, launched = [], []
    for _ in range(num_steps):
        batch = scheduler.schedule() if scheduler.has_work else None
        if batch is not None:
            num_ids = sum(chunk.samples for chunk in batch.chunks) + len(batch.decode_seats)
            launched.append((batch, [rng.randrange(VOCAB) for _ in range(num_ids)]))
        while len(launched) > (scheduler.config.steps_ahead if batch is not None else 0):
            finished += scheduler.update(*launched.pop(0))
    dropped = scheduler.drop_all()
    scheduler.check()
    for late in launched:
        assert scheduler.update(*late) == []
    assert {id(r) for r in dropped} | {id(r) for r in finished} == {id(r) for r in taken}
    assert len(dropped) + len(finished) == len(taken)
    assert_drained(scheduler)
