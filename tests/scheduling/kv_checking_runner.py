"""A runner without a model: follows batches to the letter and checks that every query finds the KV it needs.

Each slot of the pool remembers the hash of the whole prefix that was written there. A query at position p must find,
at every position before it, the hash of exactly that prefix. The token a row samples is a hash of its whole history,
so that any wrong reuse of a block also changes the output.
"""

from __future__ import annotations

from offgen.scheduling import Batch, Request, Scheduler

VOCAB = 1000


def history_hashes(token_ids):
    """One number per position: a hash of all tokens up to and with it."""
    hashes, state = [], 17
    for token_id in token_ids:
        state = (state * 1_000_003 + token_id * 7919 + 12345) % (1 << 61)
        hashes.append(state)
    return hashes


def next_token(token_ids, vocab=VOCAB):
    return (history_hashes(token_ids)[-1] >> 7) % vocab


def alone(prompt_ids, *, max_tokens, max_length, stop_ids=frozenset(), min_tokens=0, vocab=VOCAB):
    """What a request makes by itself: the oracle of outputs. Returns (ids, finish_reason)."""
    ids = list(prompt_ids)
    while True:
        ids.append(next_token(ids, vocab))
        made = len(ids) - len(prompt_ids)
        if ids[-1] in stop_ids and made >= min_tokens:
            return ids[len(prompt_ids) :], "stop"
        if made == max_tokens or len(ids) == max_length:
            return ids[len(prompt_ids) :], "length"


class FakeRunner:
    """Keeps a block table and the tokens of each seat, as a real runner does, from what batches say alone."""

    def __init__(self, scheduler: Scheduler, *, vocab: int = VOCAB) -> None:
        config = scheduler.config
        self.block_size = config.block_size
        self.num_seats = config.num_seats
        self.budget = config.max_step_tokens
        self.vocab = vocab
        self.slots: list[int | None] = [None] * (config.num_blocks * config.block_size)
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}  # by seat: tokens whose KV is written, then the one sampled last
        self.owner: dict[int, int] = {}
        self.requests: dict[int, Request] = {}
        self.num_prefill_tokens = 0
        self.num_sampled = 0
        self.num_sampling_steps = 0
        self.max_rows = 0
        self.has_failed = False

    def fail(self, batch: Batch, *, how_far: int) -> None:
        """Run out of memory before the seats are taken over (0), after it (1), or while KV is written (2)."""
        self.has_failed = True
        if how_far == 0:
            return
        for seat in batch.left:
            self._forget(seat)
        for entry in batch.entered:
            self.tables[entry.seat], self.owner[entry.seat] = list(entry.block_ids), entry.request_id
            self.tokens[entry.seat] = []
        for chunk in batch.chunks if how_far == 2 else ():
            for position in range(chunk.start, chunk.start + chunk.length):
                self.slots[self._slot(chunk.seat, position)] = None

    def _forget(self, seat: int) -> None:
        assert self.has_failed or seat in self.tables, f"seat {seat} was not taken"
        for kept in (self.tables, self.tokens, self.owner):
            kept.pop(seat, None)

    def run(self, batch: Batch) -> list[int]:
        """Launch the batch; device-side state is complete afterwards, the ids are for the host to read later."""
        for seat in batch.left:
            self._forget(seat)
        for entry in batch.entered:
            assert entry.seat not in self.tables, f"seat {entry.seat} is taken"
            assert 0 <= entry.seat < self.num_seats
            self.tables[entry.seat] = list(entry.block_ids)
            request = self.requests[entry.request_id]
            self.owner[entry.seat] = entry.request_id
            self.tokens[entry.seat] = list(request.token_ids(0, entry.num_cached_tokens))
        for grant in batch.grants:
            assert grant.first == len(self.tables[grant.seat]), "a grant does not follow the table"
            self.tables[grant.seat].extend(grant.block_ids)
        assert len(set(batch.decode_seats)) == len(batch.decode_seats)
        assert [self.owner[seat] for seat in batch.decode_seats] == list(batch.decode_request_ids)
        assert batch.num_tokens <= self.budget, "over budget"
        # all writes of a layer come before its attention
        for chunk in batch.chunks:
            assert self.owner[chunk.seat] == chunk.request_id
            tokens = self.tokens[chunk.seat]
            assert chunk.start == len(tokens) and chunk.length >= 1
            tokens += self.requests[chunk.request_id].token_ids(chunk.start, chunk.start + chunk.length)
            self._write(chunk.seat, chunk.start, len(tokens))
        for seat in batch.decode_seats:
            self._write(seat, len(self.tokens[seat]) - 1, len(self.tokens[seat]))
        sampled = []
        for chunk in batch.chunks:
            self._verify(chunk.seat)
            if chunk.samples:
                sampled.append(self._sample(chunk.seat))
        for seat in batch.decode_seats:
            self._verify(seat)
            sampled.append(self._sample(seat))
        self.num_prefill_tokens += sum(chunk.length for chunk in batch.chunks)
        self.num_sampled += len(sampled)
        self.num_sampling_steps += bool(sampled)
        self.max_rows = max(self.max_rows, len(sampled))
        return sampled

    def _slot(self, seat: int, position: int) -> int:
        size = self.block_size
        return self.tables[seat][position // size] * size + position % size

    def _write(self, seat: int, start: int, stop: int) -> None:
        hashes = history_hashes(self.tokens[seat][:stop])
        for position in range(start, stop):
            self.slots[self._slot(seat, position)] = hashes[position]

    def _verify(self, seat: int) -> None:
        for position, expected in enumerate(history_hashes(self.tokens[seat])):
            found = self.slots[self._slot(seat, position)]
            assert found == expected, f"seat {seat}, position {position}: wrong KV"

    def _sample(self, seat: int) -> int:
        token_id = next_token(self.tokens[seat], self.vocab)
        self.tokens[seat].append(token_id)
        return token_id


def play(scheduler, requests, *, vocab=VOCAB, check=True, lag=None, endings=None, trickle=None, fails=None):
    """Serve all requests; returns (runner, {request_id: request} of the finished, {request_id: why} of the refused).

    lag(n) says whether the n-th planned batch is updated late (only with steps_ahead=1).
    fails(n) says how far the n-th planned batch comes before it runs out of memory; None: it does not.
    """
    runner = FakeRunner(scheduler, vocab=vocab)
    waiting, refused, finished = list(requests), {}, {}
    launched: list = []
    num_steps = 0
    while waiting or scheduler.has_work:
        room = scheduler.room if trickle is None else min(trickle, scheduler.room)
        for request in waiting[:room]:
            runner.requests[request.request_id] = request
            reason = scheduler.add(request)
            if reason is not None:
                refused[request.request_id] = reason
        del waiting[:room]
        if not scheduler.has_work:
            continue
        batch = scheduler.schedule()
        if check:
            scheduler.check()
        how_far = fails(num_steps) if batch is not None and fails is not None else None
        if batch is not None:
            num_steps += 1
            if how_far is None:
                launched.append((batch, runner.run(batch)))
            else:
                runner.fail(batch, how_far=how_far)
        is_launched = batch is not None and how_far is None
        keep = 1 if scheduler.config.steps_ahead and is_launched and (lag is None or lag(num_steps)) else 0
        while len(launched) > keep:
            oldest, ids = launched.pop(0)
            told = endings(oldest, ids) if endings is not None else {}
            for request in scheduler.update(oldest, ids, told):
                assert request.request_id not in finished, "finished twice"
                finished[request.request_id] = request
            if check:
                scheduler.check()
        if how_far is not None:
            scheduler.take_back(batch)
            if check:
                scheduler.check()
    return runner, finished, refused
