"""The end of a job whose lengths are known: its rows are spread over the steps that its longest row takes anyway."""

from __future__ import annotations

from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.request import Request
from offgen.scheduling.scheduler import Scheduler

LENGTHS = [400, 300, 200, *[20] * 60, *[60] * 20]


def widths(lengths: list[int], *, stop_ids: frozenset[int] = frozenset(), order: str = "auto") -> list[int]:
    """Rows that sample in each step of a whole job."""
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=128, max_num_batched_tokens=512, order_policy=order))
    for i, length in enumerate(lengths):
        prompt = [i + 7, *range(10, 40)]
        assert scheduler.add(Request(i, prompt, max_tokens=length, stop_ids=stop_ids)) is None
    counts = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch is not None
        num_sampled = len(batch.decode_seats) + sum(chunk.samples for chunk in batch.chunks)
        scheduler.update(batch, [5] * num_sampled)
        scheduler.check()
        counts.append(num_sampled)
    assert sum(counts) == sum(lengths)
    return counts


def test_rows_of_known_length_are_spread_over_the_longest_rows_steps():
    counts = widths(LENGTHS)
    even = sum(LENGTHS) / max(LENGTHS)
    assert len(counts) <= 1.05 * max(LENGTHS)  # hardly a step more than the longest row needs
    assert max(counts) <= 2 * even
    assert sum(count < 4 for count in counts) < 0.2 * len(counts)
    at_once = widths(LENGTHS, stop_ids=frozenset([3]))  # the same rows, had they been able to stop early
    assert max(at_once) == len(LENGTHS) and sum(count < 4 for count in at_once) > 0.7 * len(at_once)


def test_rows_of_one_length_run_together():
    assert max(widths([128] * 32)) == 32
    assert len(widths([128] * 32)) <= 131


def test_nobody_waits_while_a_longer_row_waits():
    short_first = widths(sorted(LENGTHS), order="input")
    assert max(short_first) > 60


def test_a_job_of_few_rows_starts_them_all():
    assert widths([500, 3, 3, 3, 3])[0] == 5
