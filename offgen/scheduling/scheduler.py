"""Decides what runs in each step. Pure: lengths and block ids in, a Batch out; knows no ids' meaning and no tensor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from offgen.errors import JobError
from offgen.scheduling.batch import Batch, BlockGrant, Chunk, Entry
from offgen.scheduling.block_manager import BlockManager
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.decode_set import DecodeLists, DecodeSet
from offgen.scheduling.request import Ending, Request, RequestState
from offgen.scheduling.waiting import WaitingQueue


@dataclass(slots=True)
class Flight:
    """A batch that was planned and whose ids are not known yet."""

    batch: Batch
    sampling: list[Request]  # whose chunk samples, in the batch's order
    decodes: DecodeLists
    ending: list[Request] = field(default_factory=list)  # this step makes their last token


NO_ENDINGS: Mapping[int, Ending] = {}


class Scheduler:
    """One invariant: num_computed_tokens <= num_tokens for each request; a step computes some of the difference.

    The rows that decode come first and advance together; what is left of the token budget goes to prompts, the oldest
    row first. When blocks run out the newest row gives up its own (preemption by recompute), so the oldest can always
    finish: no row may be longer than the pool.
    """

    def __init__(self, config: SchedulerConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self._now = now
        self._blocks = BlockManager(config.num_blocks, config.block_size, prefix_caching=config.prefix_caching)
        self._waiting = WaitingQueue()
        self._running: dict[int, Request] = {}  # by seat
        self._prefilling: list[Request] = []  # the oldest first
        self._decodes = DecodeSet(config.block_size)
        self._flights: deque[Flight] = deque()
        self._ended: list[Request] = []  # their last step is planned; seat and blocks go before the next one
        self._free_seats = list(range(config.num_seats))
        self._left: list[int] = []
        self._num_arrived = 0
        self._num_admitted = 0
        self._step = 0
        self._num_steps_known = 0

    # gauges

    @property
    def room(self) -> int:
        """How many more requests the look-ahead window takes now."""
        if self._waiting.num_prompt_tokens >= self.config.window_tokens:
            return 0
        return max(0, self.config.window - self._waiting.num_new)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._flights or len(self._waiting))

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_live_blocks(self) -> int:
        return self._blocks.num_live

    @property
    def num_cached_blocks(self) -> int:
        return self._blocks.num_cached

    @property
    def num_free_blocks(self) -> int:
        return self._blocks.num_free

    # doors

    def add(self, request: Request) -> str | None:
        """Take a request into the window. None, or why it can never be served."""
        config = self.config
        if not request.prompt_ids:
            return "the prompt has no tokens"
        if request.max_tokens < 1:
            return f"max_tokens is {request.max_tokens}; at least one token is made"
        if request.num_prompt_tokens + 1 > config.max_length:
            limit = "the context" if config.max_length == config.max_model_len else "the KV pool"
            return (
                f"the prompt has {request.num_prompt_tokens} tokens; {limit} holds {config.max_length}, "
                "one of them for the first new token"
            )
        try:
            self._blocks.name_blocks(request, request.num_prompt_tokens)
        except OverflowError:
            return "a token id is out of range"
        request.max_length = min(request.num_prompt_tokens + request.max_tokens, config.max_length)
        request.arrival = self._num_arrived
        request.arrived_s = self._now()
        self._num_arrived += 1
        self._waiting.add(request)
        return None

    def schedule(self) -> Batch | None:
        """Plan the next step; None if there is nothing to compute before the ids of an earlier step are known."""
        if len(self._flights) > self.config.steps_ahead:
            raise AssertionError("update() the batches planned before first")
        self._release_ended()
        grants = self._grow_decodes()
        decodes = self._decodes.lists()
        entered: list[Entry] = []
        chunks: list[Chunk] = []
        budget = self.config.max_num_batched_tokens - len(decodes.seats)
        budget = self._continue_prefills(chunks, budget)
        self._admit(entered, chunks, budget)
        if not chunks and not decodes.seats:
            self._check_progress()
            return None
        self._step += 1
        left, self._left = self._left, []
        batch = Batch(self._step, left, entered, grants, chunks, decodes.seats, decodes.request_ids)
        self._flights.append(self._launch(batch, decodes))
        return batch

    def update(
        self, batch: Batch, token_ids: Sequence[int], endings: Mapping[int, Ending] = NO_ENDINGS
    ) -> list[Request]:
        """Take a batch's sampled ids (chunks that sample, then decode seats); returns the requests that finished.

        `endings` are decided outside, by request id, and win over the scheduler's own reasons.
        """
        if not self._flights and batch.step <= self._num_steps_known:
            return []  # dropped meanwhile
        flight = self._flights.popleft()
        assert flight.batch is batch, "batches are updated in the order they were scheduled"
        self._num_steps_known = batch.step
        decodes, sampling = flight.decodes, flight.sampling
        num_chunks = len(sampling)
        ids = token_ids[num_chunks:] if num_chunks else token_ids
        finished: list[Request] = []
        for request, token_id in zip(sampling, token_ids, strict=False):
            self._take_id(request, token_id)
        for take_id, token_id in zip(decodes.takers, ids, strict=True):
            take_id(token_id)
        if endings:
            for request in (*sampling, *decodes.requests):
                ending = endings.get(request.request_id)
                if ending is not None and not request.is_finished:
                    self._finish(request, ending.finish_reason, ending.stop_reason, finished)
        for request, token_id in zip(sampling, token_ids, strict=False):
            self._check_stop(request, token_id, finished)
        if decodes.stop_ids and not decodes.stop_ids.isdisjoint(ids):
            for request, token_id in zip(decodes.requests, ids, strict=True):
                if token_id in decodes.stop_ids:
                    self._check_stop(request, token_id, finished)
        for request in flight.ending:
            if not request.is_finished:
                by_count = request.num_prompt_tokens + request.max_tokens <= self.config.max_length
                self._finish(request, "length", "max_tokens" if by_count else "context", finished)
        return finished

    def drop_all(self) -> list[Request]:
        """On stop: every unfinished request leaves, and what was planned is forgotten."""
        dropped = {request.arrival: request for request in (*self._running.values(), *self._waiting)}
        for flight in self._flights:
            dropped |= {request.arrival: request for request in flight.ending if not request.is_finished}
        for request in list(self._running.values()):
            if request.state is RequestState.DECODING:
                self._decodes.leave(request)
            self._vacate(request)
        for request in dropped.values():
            request.state = RequestState.WAITING
        self._waiting = WaitingQueue()
        self._prefilling.clear()
        self._ended.clear()
        self._flights.clear()
        self._num_steps_known = self._step
        return [dropped[arrival] for arrival in sorted(dropped)]

    def check(self) -> None:
        """Every invariant that holds between two calls."""
        self._blocks.check(self._running.values())

    # planning

    def _release_ended(self) -> None:
        for request in self._ended:
            self._vacate(request)
        self._ended.clear()

    def _grow_decodes(self) -> list[BlockGrant]:
        grants = []
        for request in self._decodes.advance():
            if request.state is not RequestState.DECODING:
                continue  # preempted a moment ago, for an older one
            block_id = self._blocks.grow(request)
            while block_id is None:
                victim = max(self._running.values(), key=lambda other: other.admission)
                self._preempt(victim)
                if victim is request:
                    break
                block_id = self._blocks.grow(request)
            else:
                self._decodes.grew(request)
                grants.append(BlockGrant(request.seat, len(request.block_ids) - 1, [block_id]))
        return grants

    def _continue_prefills(self, chunks: list[Chunk], budget: int) -> int:
        for request in self._prefilling:
            if budget < 1:
                break
            budget -= self._add_chunk(request, chunks, budget)
        return budget

    def _admit(self, entered: list[Entry], chunks: list[Chunk], budget: int) -> None:
        while self._free_seats:
            request = self._waiting.peek()
            if request is None or request.resumes_after > self._num_steps_known:
                return
            cached = self._blocks.find_cached(request)
            num_cached = len(cached) * self.config.block_size
            num_tokens = request.num_tokens
            if not self._fits_budget(num_tokens - num_cached, budget, chunks):
                return
            num_blocks = -(-num_tokens // self.config.block_size)
            if self._blocks.num_missing(cached, num_blocks) > self._blocks.num_available:
                return
            self._waiting.pop()
            self._blocks.admit(request, cached, num_blocks)
            self._seat(request, num_cached)
            entered.append(Entry(request.request_id, request.seat, num_cached, list(request.block_ids)))
            budget -= self._add_chunk(request, chunks, budget)

    def _fits_budget(self, length: int, budget: int, chunks: list[Chunk]) -> bool:
        if self.config.chunked_prefill:
            return budget > 0
        return length <= budget or not chunks  # a prompt longer than the budget is the only one of its step

    def _seat(self, request: Request, num_cached: int) -> None:
        request.seat = heappop(self._free_seats)
        self._running[request.seat] = request
        request.state = RequestState.PREFILLING
        request.num_prefilled = num_cached
        self._prefilling.append(request)
        if request.admission < 0:
            request.admission = self._num_admitted
            self._num_admitted += 1
            request.num_cached_tokens = num_cached
            request.scheduled_s = self._now()
        else:
            self.num_recomputed_tokens += max(0, request.num_lost_tokens - num_cached)

    def _add_chunk(self, request: Request, chunks: list[Chunk], budget: int) -> int:
        """Plan as much of the request's known tokens as the budget allows; returns how many."""
        start, num_tokens = request.num_prefilled, request.num_tokens
        length = num_tokens - start
        if self.config.chunked_prefill:
            length = min(length, budget)
        request.num_prefilled = start + length
        samples = request.num_prefilled == num_tokens
        chunks.append(Chunk(request.request_id, request.seat, start, length, samples))
        self._blocks.publish(request, request.num_prefilled)
        return length

    def _launch(self, batch: Batch, decodes: DecodeLists) -> Flight:
        """Note who is in the batch, and let the rows that sample for the first time decode from the next one on."""
        sampling = [self._running[chunk.seat] for chunk in batch.chunks if chunk.samples]
        flight = Flight(batch, sampling, decodes, self._decodes.take_ending())
        for request in flight.ending:
            self._decodes.leave(request)
        for request in sampling:
            self._prefilling.remove(request)
            num_tokens = request.num_tokens + 1
            if num_tokens == request.max_length:
                flight.ending.append(request)
            else:
                request.state = RequestState.DECODING
                self._decodes.join(request, num_tokens=num_tokens, max_length=request.max_length)
        for request in flight.ending:
            request.state = RequestState.LAST_STEP
            self._ended.append(request)
        return flight

    def _check_progress(self) -> None:
        if self.has_work and not self._flights:
            raise JobError(
                f"the scheduler made no progress: {self.num_running} running, {self.num_waiting} waiting, "
                f"{self.num_live_blocks} live, {self.num_cached_blocks} cached and {self.num_free_blocks} free blocks",
                hint="this is a fault of offgen; the rows that had finished are safe",
            )

    # leaving

    def _preempt(self, request: Request) -> None:
        """Take a row's seat and blocks; its tokens stay, and their KV is computed again later."""
        if request.state is RequestState.DECODING:
            self._decodes.leave(request)
        else:
            self._prefilling.remove(request)
        request.num_lost_tokens = request.num_computed_tokens
        for flight in self._flights:
            if request in flight.sampling or request in flight.decodes.requests:
                request.resumes_after = flight.batch.step
        self._vacate(request)
        request.state = RequestState.WAITING
        request.num_prefilled = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.put_back(request)

    def _vacate(self, request: Request) -> None:
        if request.seat < 0:
            return
        num_known = request.num_computed_tokens
        self._blocks.publish(request, num_known)
        if request.finish_reason == "error":
            self._blocks.discard(request)
        else:
            self._blocks.release(request)
        del self._running[request.seat]
        self._left.append(request.seat)
        heappush(self._free_seats, request.seat)
        request.seat = -1

    def _take_id(self, request: Request, token_id: int) -> None:
        if not request.is_finished:
            request.output_ids.append(token_id)
            if request.first_token_s is None:
                request.first_token_s = self._now()

    def _check_stop(self, request: Request, token_id: int, finished: list[Request]) -> None:
        if request.is_finished or token_id not in request.stop_ids or len(request.output_ids) < request.min_tokens:
            return
        self._finish(request, "stop", None if token_id in request.eos_ids else str(token_id), finished)

    def _finish(self, request: Request, finish_reason: str, stop_reason: str | None, finished: list[Request]) -> None:
        if request.state is RequestState.WAITING:
            self._waiting.remove_preempted(request)
        elif request.state is RequestState.DECODING:
            self._decodes.leave(request)
        elif request.state is RequestState.LAST_STEP and request in self._ended:
            self._ended.remove(request)
        request.finish_reason, request.stop_reason = finish_reason, stop_reason
        request.finished_s = self._now()
        for flight in self._flights:
            flight.decodes.silence(request)
        self._vacate(request)
        request.state = RequestState.FINISHED
        finished.append(request)
