"""Orders of waiting rows, and what is expected of their lengths."""

from __future__ import annotations

import random

from offgen.scheduling import Request, Scheduler, SchedulerConfig
from offgen.scheduling.length_forecast import LengthForecast
from offgen.scheduling.policy import ORDERS, auto_order, longest_first, prefix_order
from offgen.scheduling.prefix_cache import extend_hashes


def holds_nothing(name):
    return False


def waiting_rows(prompts, expected=None):
    rows = []
    for number, prompt in enumerate(prompts):
        request = Request(number, prompt, max_tokens=10)
        extend_hashes(request.block_hashes, prompt, 4, b"")
        request.expected_tokens = expected[number] if expected else 1.0
        rows.append(request)
    return rows


def ids(rows):
    return [request.request_id for request in rows]


def test_every_order_serves_every_row_once():
    rng = random.Random(1)
    trunks = [[rng.randrange(9) for _ in range(60)] for _ in range(4)]
    prompts = [rng.choice(trunks)[: rng.randint(0, 60)] + [rng.randrange(9)] * rng.randint(1, 9) for _ in range(300)]
    rows = waiting_rows(prompts, [rng.random() for _ in prompts])
    for order in ORDERS.values():
        assert sorted(ids(order(rows, holds_nothing))) == list(range(300))


def test_ties_keep_the_order_of_arrival():
    rows = waiting_rows([[number] * 5 for number in range(20)])
    for order in ORDERS.values():
        assert ids(order(rows, holds_nothing)) == list(range(20))


def test_prefix_order_keeps_families_together_at_every_depth():
    trunk, left, right = [1] * 8, [2] * 4, [3] * 4
    rows = waiting_rows([trunk + left + [5], [9] * 6, trunk + right, trunk + left + [6], [9] * 5, trunk + right + [7]])
    assert ids(prefix_order(rows, holds_nothing)) == [0, 3, 2, 5, 1, 4]


def test_prefix_order_goes_on_with_what_is_in_the_pool_then_with_the_longest():
    rows = waiting_rows([[1] * 5, [2] * 5, [3] * 5, [1] * 6, [2] * 6, [3] * 6], [1, 1, 9, 1, 1, 1])
    assert ids(prefix_order(rows, holds_nothing)) == [2, 5, 0, 3, 1, 4]
    held = rows[1].block_hashes[0]
    assert ids(prefix_order(rows, lambda name: name == held)) == [1, 4, 2, 5, 0, 3]


def test_a_thousand_prefixes_within_each_other_are_no_trouble():
    rows = waiting_rows([[1] * (4 * number + 1) for number in range(1000)])
    assert ids(prefix_order(rows, holds_nothing)) == list(range(1000))


def test_auto_takes_the_longest_first_where_nothing_is_shared():
    rows = waiting_rows([[number] * 9 for number in range(6)], [3, 1, 4, 1, 5, 9])
    assert ids(auto_order(rows, holds_nothing)) == ids(longest_first(rows, holds_nothing)) == [5, 4, 2, 0, 1, 3]


def finished(num_prompt, num_output, max_tokens=512, reason="stop"):
    request = Request(0, [1] * num_prompt, max_tokens=max_tokens)
    request.max_length = num_prompt + max_tokens
    request.output_ids = [1] * num_output
    request.finish_reason = reason
    return request


def test_lengths_are_learned_by_prompt_length():
    forecast = LengthForecast()
    rng = random.Random(0)
    for _ in range(200):
        forecast.observe(finished(20, rng.randint(5, 15)))
        forecast.observe(finished(300, rng.randint(150, 250)))
    assert 8 < forecast.expect(finished(20, 0)) < 20
    assert 170 < forecast.expect(finished(300, 0)) < 230


def test_a_row_that_outlived_the_others_is_expected_to_go_on():
    forecast = LengthForecast()
    for length in [10] * 90 + [400] * 10:
        forecast.observe(finished(20, length))
    assert forecast.expect(finished(20, 0)) < 70
    assert 350 < forecast.expect(finished(20, 50)) < 450
    assert forecast.expect(finished(20, 511)) == 512


def test_rows_that_meet_their_limit_say_that_limits_count():
    forecast = LengthForecast()
    for _ in range(100):
        forecast.observe(finished(20, 300, max_tokens=300, reason="length"))
    assert forecast.expect(finished(20, 0, max_tokens=500)) > 480


def test_survival_falls_from_one_to_nothing():
    forecast = LengthForecast()
    for length in range(1, 200):
        forecast.observe(finished(20, length))
    chances = forecast.survival(finished(20, 0), [0, 50, 100, 150, 511, 512])
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == 1.0 and chances[-1] == 0.0
    assert 0.4 < chances[2] < 0.6


def test_the_longest_rows_start_first_once_lengths_are_learned():
    """Prompts of 40 tokens make long outputs, prompts of 4 short ones: nobody says so, the job shows it."""
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=2, num_blocks=400))
    for number in range(200):
        is_long = number % 2
        scheduler.add(Request(number, [number] * (40 if is_long else 4), max_tokens=100, stop_ids=frozenset([1])))
    order = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        order += [entry.request_id for entry in batch.entered]
        in_step = [chunk.request_id for chunk in batch.chunks if chunk.samples] + list(batch.decode_request_ids)
        requests = scheduler._unfinished
        scheduler.update(batch, [int(len(requests[i].output_ids) + 1 == (50 if i % 2 else 3)) for i in in_step])
    assert sum(number % 2 for number in order[70:110]) > 35
    assert not any(number % 2 for number in order[-50:])
