"""The scheduler, step by step, against the slow and obvious one: no calendar, no shared lists, blocks as a count."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from offgen.scheduling import Request, Scheduler, SchedulerConfig


class GoldRow:
    def __init__(self, request_id, num_prompt, num_output):
        self.request_id, self.num_prompt, self.num_output = request_id, num_prompt, num_output
        self.made = self.computed = self.blocks = 0
        self.age = None

    @property
    def known(self):
        return self.num_prompt + self.made


class GoldScheduler:
    """Continuous, input order, no cache; every row that fits now starts."""

    def __init__(self, config):
        self.config, self.free, self.num_admitted = config, config.num_blocks, 0
        self.waiting, self.preempted, self.prefilling, self.decoding = [], [], [], []

    def step(self):
        """Returns (chunks as (id, start, length), ids that decode), and lets every row make its token."""
        size, chunks = self.config.block_size, []
        for row in sorted(self.decoding, key=lambda row: row.age):
            if row in self.decoding and row.known > row.blocks * size:
                while row in self.decoding and not self.free:
                    self.preempt(max(self.decoding + self.prefilling, key=lambda row: row.age))
                if row in self.decoding:
                    row.blocks, self.free = row.blocks + 1, self.free - 1
        decodes = list(self.decoding)
        budget = self.config.max_num_batched_tokens - len(decodes)
        for row in self.prefilling:
            budget = self.chunk(row, budget, chunks)
        while len(self.decoding) + len(self.prefilling) < self.config.num_seats and (self.preempted or self.waiting):
            row = (self.preempted or self.waiting)[0]
            whole_fits = row.known <= budget or not chunks
            if not (budget > 0 if self.config.chunked_prefill else whole_fits) or -(-row.known // size) > self.free:
                break
            (self.preempted or self.waiting).pop(0)
            if row.age is None:
                row.age, self.num_admitted = self.num_admitted, self.num_admitted + 1
            row.blocks = -(-row.known // size)
            self.free -= row.blocks
            self.prefilling.append(row)
            budget = self.chunk(row, budget, chunks)
        for row in decodes:
            row.computed += 1
        for row in [*decodes, *[row for row in self.prefilling if row.computed == row.known]]:
            row.made += 1
            if row in self.prefilling:
                self.prefilling.remove(row)
                self.decoding.append(row)
            if row.made == row.num_output or row.known == self.config.max_length:
                self.decoding.remove(row)
                self.free += row.blocks
        return chunks, {row.request_id for row in decodes}

    def chunk(self, row, budget, chunks):
        length = row.known - row.computed
        if self.config.chunked_prefill:
            length = min(length, budget)
        if length > 0:
            chunks.append((row.request_id, row.computed, length))
            row.computed += length
        return budget - length

    def preempt(self, row):
        (self.decoding if row in self.decoding else self.prefilling).remove(row)
        self.free += row.blocks
        row.blocks = row.computed = 0
        self.preempted = sorted([*self.preempted, row], key=lambda row: row.age)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    max_num_seqs=st.integers(1, 8),
    budget=st.integers(1, 40),
    block_size=st.sampled_from([1, 2, 3, 4, 16]),
    pool=st.sampled_from([1, 1.2, 1.5, 2, 4]),
    chunked_prefill=st.booleans(),
)
def test_each_step_is_the_gold_schedulers(seed, max_num_seqs, budget, block_size, pool, chunked_prefill):
    rng = random.Random(seed)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=70,
        block_size=block_size,
        num_blocks=max(2, int(70 * pool / block_size)),
        prefix_caching=False,
        chunked_prefill=chunked_prefill,
        order_policy="input",
    )
    gold, scheduler = GoldScheduler(config), Scheduler(config)
    scheduler._plan.admits = lambda *args, **kwargs: True
    for request_id in range(rng.randint(1, 12)):
        num_prompt, num_output = rng.randint(1, 30), rng.randint(1, 50)
        if scheduler.add(Request(request_id, [1] * num_prompt, max_tokens=num_output)) is None:
            gold.waiting.append(GoldRow(request_id, num_prompt, num_output))
    while scheduler.has_work:
        batch = scheduler.schedule()
        scheduler.check()
        assert batch is not None
        chunks, decodes = gold.step()
        assert [(chunk.request_id, chunk.start, chunk.length) for chunk in batch.chunks] == chunks
        assert set(batch.decode_request_ids) == decodes
        scheduler.update(batch, [5] * (sum(chunk.samples for chunk in batch.chunks) + len(batch.decode_seats)))
        assert scheduler.num_free_blocks == gold.free
    assert not (gold.waiting or gold.preempted or gold.prefilling or gold.decoding)
