"""The rows that run: how they come by seats and blocks, and how they lose them. Knows no budget and no order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from offgen.scheduling.batch import BlockGrant, Entry
from offgen.scheduling.block_manager import BlockManager
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.decode_set import DecodeSet
from offgen.scheduling.flight import Flight
from offgen.scheduling.memory_plan import MemoryPlan
from offgen.scheduling.modes import open_mode
from offgen.scheduling.request import Ending, Request, RequestState
from offgen.scheduling.seats import Seats
from offgen.scheduling.waiting import WaitingQueue


class RunningRows:
    """Writer of Request.state, and of everything a request remembers of its admissions and its end."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        blocks: BlockManager,
        plan: MemoryPlan,
        waiting: WaitingQueue,
        flights: deque[Flight],
        now: Callable[[], float],
    ) -> None:
        self.mode = open_mode(config)
        self.seats = Seats(config.num_seats)
        self.decodes = DecodeSet(config.block_size)
        self.prefilling: list[Request] = []  # in the order they took their seats
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self._blocks = blocks
        self._plan = plan
        self._waiting = waiting
        self._flights = flights
        self._now = now
        self._ended: list[Request] = []  # their last step is planned; seat and blocks go before the next one
        self._num_active = 0  # seated rows that will still make a token
        self._num_admitted = 0

    def __len__(self) -> int:
        return len(self.seats)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.seats)

    def enter(self, request: Request, cached: list[int], num_blocks: int, num_cached: int) -> Entry:
        """Seat a row on `num_blocks` blocks, of which `cached` already hold its first `num_cached` tokens."""
        self._blocks.admit(request, cached, num_blocks)
        self._plan.entered(request, num_blocks - len(cached))
        self.seats.take(request)
        self.prefilling.append(request)
        self._num_active += 1
        request.state = RequestState.PREFILLING
        request.num_prefilled = num_cached
        if request.admission < 0:
            request.admission = self._num_admitted
            self._num_admitted += 1
            request.num_cached_tokens = num_cached
            request.scheduled_s = self._now()
        else:
            self.num_recomputed_tokens += max(0, request.num_lost_tokens - num_cached)
        return Entry(request.request_id, request.seat, num_cached, request.block_ids[:])

    def advance(self) -> list[BlockGrant]:
        """Start the next tick of the decode rows: those at a block's edge get a block, the oldest first.

        When none is left the newest row of all is preempted; a row that needs a block may be that one itself.
        """
        grants = []
        for request in self.decodes.advance():
            if request.decode_index < 0:
                continue  # preempted a moment ago, for an older one
            block_id = self._blocks.grow(request)
            while block_id is None:
                victim = self.seats.newest()
                self._preempt(victim)
                if victim is request:
                    break
                block_id = self._blocks.grow(request)
            else:
                self.decodes.grew(request)
                grants.append(BlockGrant(request.seat, len(request.block_ids) - 1, [block_id]))
        return grants

    def launched(self, sampling: list[Request]) -> list[Request]:
        """The step is planned: `sampling` rows decode from the next one on. Returns the rows it ends, by count."""
        keeps_seats = self.mode.keeps_seats
        ending = []
        for request in self.decodes.take_ending():
            if request.state is RequestState.DECODING:
                ending.append(request)
            if request.state is not RequestState.DECODING or not keeps_seats:
                self.decodes.leave(request)
        for request in sampling:
            self.prefilling.remove(request)
            num_tokens = request.num_tokens + 1
            max_length = request.max_length
            if num_tokens == max_length:
                ending.append(request)
                max_length = self.mode.reserved_tokens(request) if keeps_seats else num_tokens
            if num_tokens < max_length:
                request.state = RequestState.DECODING
                self.decodes.join(request, num_tokens=num_tokens, max_length=max_length)
        for request in ending:
            request.state = RequestState.LAST_STEP
            self._num_active -= 1
            if not keeps_seats:
                self._ended.append(request)
            elif request.decode_index >= 0:
                self._outlive(request, self.mode.reserved_tokens(request) - request.max_length)
        return ending

    def finish(self, request: Request, ending: Ending) -> None:
        """It has its last token. In continuous batching seat and blocks are free at once."""
        request.finish_reason, request.stop_reason = ending.finish_reason, ending.stop_reason
        request.finished_s = self._now()
        for flight in self._flights:
            flight.ignore(request)
        state = request.state
        if state is RequestState.WAITING:
            self._waiting.remove_preempted(request)
        elif state is not RequestState.LAST_STEP:
            self._num_active -= 1
            if state is RequestState.PREFILLING:
                self.prefilling.remove(request)
            if not self.mode.keeps_seats:
                self._vacate(request)
            elif request.decode_index >= 0:
                self._outlive(request, self.mode.reserved_tokens(request) - request.num_tokens)
        elif request in self._ended:
            self._ended.remove(request)
            self._vacate(request)
        request.state = RequestState.FINISHED

    def release_ended(self) -> None:
        """Rows that have their last step behind them give up seat and blocks (a static batch: all together)."""
        if self.mode.keeps_seats:
            if not self._num_active and self.seats:
                self.mode.seal()
                for request in list(self.seats):
                    self._vacate(request)
            return
        for request in self._ended:
            self._vacate(request)
        self._ended.clear()

    def clear(self) -> None:
        """Everybody leaves."""
        for request in list(self.seats):
            self._vacate(request)
            if not request.is_finished:
                request.state = RequestState.WAITING
        self.prefilling.clear()
        self._ended.clear()
        self._num_active = 0

    def take_back(self, flight: Flight) -> None:
        """The batch planned last was never computed, or in part: all rows give up seat and blocks, to start again.

        No content is read again: some of it may be that batch's, named and never written.
        """
        self.seats.put_back_left(flight.batch.left)  # whether the runner took it over is not known
        starts = {chunk.request_id: chunk.start for chunk in flight.batch.chunks}
        # a static batch may have let go of rows whose last step this was
        unseated = [request for request in flight.ending if request.seat < 0]
        rows = [request for request in (*self.seats, *unseated) if not request.is_finished]
        for request in list(self.seats):
            self._vacate(request)
        self._blocks.forget_all()
        for request in rows:
            request.num_lost_tokens = starts.get(request.request_id, request.num_computed_tokens)
            self._put_back(request)
        self.prefilling.clear()
        self._ended.clear()
        self._num_active = 0
        self.mode.seal()

    def check(self) -> None:
        """Seats, decode rows, prefilling rows and blocks agree with each other and with each request's state."""
        self.seats.check()
        self._blocks.check(self.seats)
        self.decodes.check()
        prefilling = [request for request in self if request.state is RequestState.PREFILLING]
        assert {id(request) for request in prefilling} == {id(request) for request in self.prefilling}
        assert len(prefilling) == len(self.prefilling), "a row prefills twice"
        active = [r for r in self if r.state in (RequestState.PREFILLING, RequestState.DECODING)]
        assert len(active) == self._num_active, "active rows are miscounted"
        size = self._blocks.block_size
        for request in self:
            assert request.num_computed_tokens <= request.num_tokens
            assert request.num_computed_tokens <= len(request.block_ids) * size, "tokens without a block"
            assert request.state is not RequestState.WAITING, "a waiting row has a seat"
            if request.state is RequestState.DECODING:
                assert request.decode_index >= 0, "a decoding row is not among the decode rows"

    def _outlive(self, request: Request, num_tokens: int) -> None:
        """The row's ids are ignored from now on, and it leaves the decode rows after so many more tokens."""
        self.decodes.mute(request)
        if num_tokens > 0:
            self.decodes.set_end(request, self.decodes.tick + num_tokens)
        else:
            self.decodes.leave(request)

    def _preempt(self, request: Request) -> None:
        """Take a row's seat and blocks; its tokens stay, and their KV is computed again later."""
        request.num_lost_tokens = request.num_computed_tokens
        for flight in self._flights:
            if flight.awaits(request):
                request.resumes_after = flight.batch.step
        if request.state is RequestState.PREFILLING:
            self.prefilling.remove(request)
        self._num_active -= 1
        self._plan.preempted()
        self._vacate(request)
        self._put_back(request)

    def _put_back(self, request: Request) -> None:
        request.state = RequestState.WAITING
        request.num_prefilled = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.put_back(request)

    def _vacate(self, request: Request) -> None:
        """Seat and blocks are free for others; full blocks keep their content for whoever can use it."""
        if request.decode_index >= 0:
            self.decodes.leave(request)
        if request.finish_reason == "error":
            self._blocks.discard(request)
        else:
            self._blocks.publish(request, request.num_computed_tokens)
            self._blocks.release(request)
        self._plan.left(request)
        self.seats.leave(request)
