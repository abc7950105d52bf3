"""Kinds of faults that users of such tools ran into, each as an input and the right behaviour."""

from __future__ import annotations

import weakref

import pytest
from kv_checking_runner import alone, play

from offgen.errors import JobError
from offgen.scheduling import Ending, Request, Scheduler, SchedulerConfig
from offgen.scheduling.watchdog import Watchdog


def serve(config, requests, **options):
    scheduler = Scheduler(config)
    runner, finished, refused = play(scheduler, requests, **options)
    assert scheduler.num_live_blocks == 0
    assert scheduler.num_free_blocks + scheduler.num_cached_blocks == config.num_blocks
    return scheduler, runner, finished, refused


@pytest.mark.parametrize("place", [0, 50, 100])
def test_one_prompt_beyond_the_context_harms_no_other(place):
    lengths = [5] * 100
    lengths.insert(place, 65)
    requests = [Request(i, [i % 7 + 1] * length, max_tokens=3) for i, length in enumerate(lengths)]
    _, _, finished, refused = serve(SchedulerConfig(max_model_len=64, max_num_seqs=8), requests, check=False)
    assert list(refused) == [place]
    assert "65 tokens" in refused[place] and "64" in refused[place]
    assert len(finished) == 100


def test_what_can_never_fit_the_pool_is_refused_at_once():
    config = SchedulerConfig(max_model_len=512, num_blocks=8, block_size=16, max_num_seqs=4)
    requests = [Request(0, [3] * 200, max_tokens=10)] + [Request(i, [i] * 10, max_tokens=10) for i in range(1, 11)]
    _, _, finished, refused = serve(config, requests)
    assert list(refused) == [0] and "the KV pool" in refused[0]
    assert all(len(request.output_ids) == 10 for request in finished.values())


def test_what_outgrows_the_pool_ends_by_context():
    config = SchedulerConfig(max_model_len=512, num_blocks=8, block_size=16, max_num_seqs=4)
    requests = [Request(0, [3] * 120, max_tokens=50), Request(1, [4] * 10, max_tokens=10)]
    _, _, finished, _ = serve(config, requests)
    assert len(finished[0].output_ids) == 8
    assert (finished[0].finish_reason, finished[0].stop_reason) == ("length", "context")
    assert (finished[1].finish_reason, finished[1].stop_reason) == ("length", "max_tokens")


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "expected"),
    [(63, 1, (1, "max_tokens")), (63, 1000, (1, "context")), (60, 4, (4, "max_tokens")), (60, 5, (4, "context"))],
)
def test_the_context_ends_a_row_and_says_so(num_prompt, max_tokens, expected):
    _, _, finished, _ = serve(
        SchedulerConfig(max_model_len=64, num_blocks=64), [Request(0, [1] * num_prompt, max_tokens=max_tokens)]
    )
    assert (len(finished[0].output_ids), finished[0].stop_reason) == expected


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(64, 1), (65, 1), (0, 1), (5, 0)])
def test_no_room_for_one_token_is_refused(num_prompt, max_tokens):
    scheduler = Scheduler(SchedulerConfig(max_model_len=64))
    assert scheduler.add(Request(0, [1] * num_prompt, max_tokens=max_tokens)) is not None
    assert not scheduler.has_work


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_pool_too_small_for_all_preempts_and_changes_nothing(steps_ahead, prefix_caching):
    config = SchedulerConfig(
        max_num_seqs=4, num_blocks=9, block_size=16, steps_ahead=steps_ahead, prefix_caching=prefix_caching
    )
    requests = [Request(i, [i + 1] * 10, max_tokens=64) for i in range(4)]
    scheduler, _, finished, _ = serve(config, requests)
    assert scheduler.num_preemptions > 0
    assert sum(request.num_preemptions for request in finished.values()) == scheduler.num_preemptions
    for request in requests:
        assert request.output_ids == alone(request.prompt_ids, max_tokens=64, max_length=144)[0]


def test_the_newest_row_is_preempted_and_the_oldest_never():
    config = SchedulerConfig(max_num_seqs=16, num_blocks=20, block_size=4, order_policy="input")
    scheduler = Scheduler(config)
    scheduler._plan.admits = lambda *args, **kwargs: True
    requests = [Request(i, [i + 1] * 4, max_tokens=60) for i in range(16)]  # all cross each block edge together
    _, finished, _ = play(scheduler, requests)
    assert next(iter(finished)) == 0
    assert requests[0].num_preemptions == 0
    assert max(request.num_preemptions for request in requests) > 1
    assert requests[15].num_preemptions >= 1


def test_a_row_can_be_preempted_before_its_first_token():
    config = SchedulerConfig(max_num_seqs=2, num_blocks=6, block_size=4, max_num_batched_tokens=3, max_model_len=24)
    scheduler = Scheduler(config)
    scheduler._plan.admits = lambda *args, **kwargs: True
    old, new = Request(0, [1, 2, 3], max_tokens=20), Request(1, [9] * 16, max_tokens=4)
    states = []
    original = scheduler._running._preempt

    def preempt(request):
        states.append((request.request_id, len(request.output_ids)))
        original(request)

    scheduler._running._preempt = preempt
    play(scheduler, [old, new])
    assert (1, 0) in states
    assert new.output_ids == alone(new.prompt_ids, max_tokens=4, max_length=24)[0]


@pytest.mark.parametrize("order", [(0, 1, 2, 0, 3), (3, 2, 1, 0, 0), (0, 3, 0, 3, 1)])
def test_evicted_content_is_never_found(order):
    """Few blocks, prompts that evict each other, one that shares half of the first."""
    prompts = [[1] * 40, [2] * 60, list(range(70)), [1] * 20 + [5] * 20]
    config = SchedulerConfig(num_blocks=12, block_size=8, max_num_seqs=2, max_model_len=90)
    requests = [Request(place, prompts[which], max_tokens=5) for place, which in enumerate(order)]
    serve(config, requests, trickle=1)
    for request in requests:
        assert request.output_ids == alone(request.prompt_ids, max_tokens=5, max_length=90)[0]


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_nothing_is_lost_over_thousands_of_rows(steps_ahead):
    config = SchedulerConfig(
        max_num_seqs=32,
        num_blocks=60,
        block_size=4,
        max_num_batched_tokens=64,
        steps_ahead=steps_ahead,
        max_model_len=60,
    )
    requests = [
        Request(i, [i % 5] * (i % 11 + 1) + [i % 3], max_tokens=i % 17 + 1, stop_ids=frozenset([i % 40]))
        for i in range(3000)
    ]
    doomed = {i: Ending("error") for i in range(0, 3000, 13)}

    def endings(batch, ids):
        return {i: doomed[i] for i in batch.decode_request_ids if i in doomed}

    _, _, finished, _ = serve(config, requests, vocab=40, check=False, endings=endings)
    assert len(finished) == 3000


@pytest.mark.parametrize("budget", [1, 7, 16, 17, 40, 100])
def test_a_chunks_size_changes_nothing(budget):
    config = SchedulerConfig(max_num_batched_tokens=budget, block_size=16, max_num_seqs=4)
    requests = [Request(i, list(range(i, i + 40)), max_tokens=6) for i in range(5)]
    _, runner, _, _ = serve(config, requests)
    for request in requests:
        assert request.output_ids == alone(request.prompt_ids, max_tokens=6, max_length=4096)[0]
    assert runner.num_prefill_tokens == 200


@pytest.mark.parametrize("budget", [8, 40, 64])
def test_without_chunks_a_prompt_is_taken_whole(budget):
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4, chunked_prefill=False)
    scheduler = Scheduler(config)
    for i in range(6):
        scheduler.add(Request(i, [i + 1] * (50 if i == 2 else 7), max_tokens=20))
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert all(chunk.samples and chunk.start == 0 for chunk in batch.chunks)
        assert batch.num_tokens <= budget or len(batch.chunks) == 1
        scheduler.update(batch, [5] * (len(batch.chunks) + len(batch.decode_seats)))


def test_rows_that_do_not_read_the_cache_compute_all_their_tokens():
    config = SchedulerConfig(block_size=16)
    requests = [Request(i, list(range(40)), max_tokens=2, reads_cache=i == 2) for i in range(3)]
    _, runner, finished, _ = serve(config, requests)
    assert [finished[i].num_cached_tokens for i in range(3)] == [0, 0, 32]
    assert runner.num_prefill_tokens == 40 + 40 + 8


def test_the_last_token_of_a_prompt_is_always_computed():
    requests = [Request(i, list(range(32)), max_tokens=2) for i in range(2)]
    _, _, finished, _ = serve(SchedulerConfig(block_size=16), requests)
    assert finished[1].num_cached_tokens == 16


def test_a_preempted_row_finds_its_own_blocks_again():
    config = SchedulerConfig(max_num_seqs=2, num_blocks=40, block_size=4, max_model_len=100)
    scheduler = Scheduler(config)
    row = Request(0, list(range(20)), max_tokens=40)
    scheduler.add(row)
    for _ in range(21):
        batch = scheduler.schedule()
        scheduler.update(batch, [len(row.output_ids) + 100])
    scheduler._running._preempt(row)
    batch = scheduler.schedule()
    assert batch.left and batch.entered[0].num_cached_tokens == 40
    assert [chunk.length for chunk in batch.chunks] == [1]
    assert scheduler.num_recomputed_tokens == 0
    assert row.num_cached_tokens == 0  # what it found at first


def test_min_tokens_holds_back_every_stop_id():
    request = Request(0, [1], max_tokens=10, min_tokens=3, stop_ids=frozenset([7, 8]), eos_ids=frozenset([7]))
    scheduler = Scheduler(SchedulerConfig())
    scheduler.add(request)
    for expected in ([], [], [request]):
        assert scheduler.update(scheduler.schedule(), [7]) == expected
    assert (request.finish_reason, request.stop_reason) == ("stop", None)


def test_a_stop_id_is_named_and_eos_is_not():
    scheduler = Scheduler(SchedulerConfig())
    rows = [Request(i, [1, i], max_tokens=1, stop_ids=frozenset([7, 8]), eos_ids=frozenset([7])) for i in range(2)]
    for row in rows:
        scheduler.add(row)
    scheduler.update(scheduler.schedule(), [8, 7])
    assert [(row.finish_reason, row.stop_reason) for row in rows] == [("stop", "8"), ("stop", None)]


def test_lists_are_reused_while_nobody_comes_or_goes():
    scheduler = Scheduler(SchedulerConfig(num_blocks=100))
    for i in range(4):
        scheduler.add(Request(i, [i + 1] * 3, max_tokens=50))
    scheduler.update(scheduler.schedule(), [1] * 4)
    first = scheduler.schedule()
    scheduler.update(first, [1] * 4)
    second = scheduler.schedule()
    assert second.decode_seats is first.decode_seats and second.decode_request_ids is first.decode_request_ids


def test_the_watchdog_raises_with_the_state():
    scheduler = Scheduler(SchedulerConfig())
    scheduler.add(Request(0, [1, 2], max_tokens=1))
    scheduler._prompts._fits_memory = lambda *args: False
    with pytest.raises(JobError, match="waiting 1"):
        scheduler.schedule()
    dog = Watchdog(max_length=5)
    with pytest.raises(JobError, match="no token in"):
        for _ in range(200):
            dog.stepped(samples=False, state={"running": 1})


def test_static_rows_keep_their_seats_until_the_longest_ends():
    config = SchedulerConfig(max_num_seqs=3, batching="static", num_blocks=100)
    scheduler = Scheduler(config)
    for i, max_tokens in enumerate([2, 9, 4, 3]):
        scheduler.add(Request(i, [i + 1] * 3, max_tokens=max_tokens))
    seats = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        seats.append(len(batch.decode_seats))
        scheduler.update(batch, [5] * (len(batch.chunks) + len(batch.decode_seats)))
    assert seats == [0, *[3] * 8, 0, 1, 1]
    assert scheduler.num_sampled_tokens == 2 + 9 + 4 + 3


def test_a_static_batch_waits_for_rows_that_are_coming():
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=2, batching="static", num_blocks=100))
    scheduler.more_is_coming = True
    scheduler.add(Request(0, [1], max_tokens=1))
    assert scheduler.schedule() is None
    scheduler.add(Request(1, [2], max_tokens=1))
    scheduler.update(scheduler.schedule(), [5, 5])
    scheduler.add(Request(2, [3], max_tokens=1))
    assert scheduler.schedule() is None
    scheduler.more_is_coming = False
    assert len(scheduler.schedule().chunks) == 1


def test_a_finished_row_is_not_kept_until_its_limit():
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=2, num_blocks=1000))
    rows = [Request(i, [i + 1] * 20, max_tokens=4000, stop_ids=frozenset([7])) for i in range(50)]
    alive = [weakref.ref(row) for row in rows]
    for row in rows:
        scheduler.add(row)
    del row, rows
    while scheduler.has_work:
        batch = scheduler.schedule()
        scheduler.update(batch, [7 if batch.step % 3 == 0 else 5] * (len(batch.chunks) + len(batch.decode_seats)))
    del batch
    assert not any(ref() for ref in alive)


def test_dynamic_batches_close_by_size_or_by_waiting():
    clock = [0.0]
    config = SchedulerConfig(max_num_seqs=2, batching="dynamic", dynamic_wait_s=1.0)
    scheduler = Scheduler(config, now=lambda: clock[0])
    scheduler.add(Request(0, [1], max_tokens=1))
    assert scheduler.schedule() is None and scheduler.opens_at_s == 1.0
    clock[0] = 0.5
    scheduler.add(Request(1, [2], max_tokens=1))
    scheduler.update(scheduler.schedule(), [5, 5])
    scheduler.add(Request(2, [3], max_tokens=1))
    assert scheduler.schedule() is None
    clock[0] = 1.5
    assert len(scheduler.schedule().chunks) == 1


def test_no_row_waits_for_ever_behind_longer_ones():
    config = SchedulerConfig(max_num_seqs=1, window=4, order_policy="longest-first", num_blocks=100)
    scheduler = Scheduler(config)
    short = Request(0, [1], max_tokens=1)
    scheduler.add(short)
    for number in range(1, 200):
        while scheduler.room:
            scheduler.add(Request(number * 1000 + scheduler.room, [number], max_tokens=5))
        scheduler.update(scheduler.schedule(), [5])
        if short.is_finished:
            break
    assert short.is_finished
    assert number <= 5 * (2 * config.window + 2)


def test_the_window_is_bounded_by_rows_and_by_tokens():
    scheduler = Scheduler(SchedulerConfig(window=3, window_tokens=100))
    assert scheduler.room == 3
    scheduler.add(Request(0, [1] * 40, max_tokens=1))
    assert scheduler.room == 2
    scheduler.add(Request(1, [1] * 70, max_tokens=1))
    assert scheduler.room == 0
