"""Decides what runs in each step. Pure: lengths and block ids in, a Batch out; knows no sampling and no tensor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from offgen.scheduling.admission import refusal
from offgen.scheduling.batch import Batch, BlockGrant
from offgen.scheduling.block_manager import BlockManager
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.decode_set import DecodeLists
from offgen.scheduling.flight import Flight
from offgen.scheduling.length_forecast import LengthForecast
from offgen.scheduling.memory_plan import MemoryPlan
from offgen.scheduling.prompts import Prompts, StepPrompts
from offgen.scheduling.request import Ending, Request
from offgen.scheduling.running import RunningRows
from offgen.scheduling.step_limits import StepLimits
from offgen.scheduling.step_shape import StepShape
from offgen.scheduling.waiting import WaitingQueue
from offgen.scheduling.watchdog import Watchdog

NO_ENDINGS: Mapping[int, Ending] = {}


class Scheduler:
    """One invariant: num_computed_tokens <= num_tokens for each request; a step computes some of the difference.

    The rows that decode come first and advance together; what is left of the token budget goes to prompts, in the order
    their rows took seats. (Prompts may also have steps of their own: step_shape.py.) When blocks run out the newest row
    gives up its own (preemption by recompute), so the oldest can always finish: no row may be longer than the pool.

    A chunk may rest on KV that an earlier chunk of the same batch writes: a runner writes a layer's KV for the whole
    batch before it attends.
    """

    def __init__(self, config: SchedulerConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        # set by a caller who has not added all yet: static batching then waits for full batches
        self.more_is_coming = False
        self._now = now
        self._blocks = BlockManager(config.num_blocks, config.block_size, prefix_caching=config.prefix_caching)
        self._forecast = LengthForecast()
        self._plan = MemoryPlan(config.num_blocks, config.block_size, self._forecast)
        self._waiting = WaitingQueue(config.order_policy_in_use, config.window, self._forecast, self._blocks.cache)
        self._flights: deque[Flight] = deque()
        self._running = RunningRows(
            config, blocks=self._blocks, plan=self._plan, waiting=self._waiting, flights=self._flights, now=now
        )
        self._limits = StepLimits.of(config)
        self._prompts = Prompts(
            config,
            blocks=self._blocks,
            plan=self._plan,
            waiting=self._waiting,
            running=self._running,
            limits=self._limits,
            now=now,
        )
        self._shape = StepShape(config)
        self._watchdog = Watchdog(config.max_length)
        self.num_sampled_tokens = 0  # those that became some row's output
        self._unfinished: dict[int, Request] = {}  # admitted once or more; by request id
        self._num_arrived = 0
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
        return bool(self._running or self._flights or self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_decoding(self) -> int:
        return len(self._running.decodes)

    @property
    def tick(self) -> int:
        """Steps in which rows could decode, so far: each decode row made a token in each."""
        return self._running.decodes.tick

    @property
    def step_shape(self) -> str:
        """How prompts are computed: mixed, separate, or undecided while both are measured."""
        return self._shape.name

    @property
    def num_live_blocks(self) -> int:
        return self._blocks.num_live

    @property
    def num_cached_blocks(self) -> int:
        return self._blocks.num_cached

    @property
    def num_free_blocks(self) -> int:
        return self._blocks.num_free

    @property
    def num_preemptions(self) -> int:
        return self._running.num_preemptions

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens whose KV was computed again after a preemption."""
        return self._running.num_recomputed_tokens

    @property
    def opens_at_s(self) -> float | None:
        """In dynamic batching: when the rows that wait for company start without it."""
        return self._running.mode.opens_at_s(self._waiting)

    # doors

    def add(self, request: Request) -> str | None:
        """Take a request into the window. None, or why it can never be served.

        request_id is unique among unfinished requests.
        """
        if (reason := refusal(request, self.config)) is not None:
            return reason
        try:
            self._blocks.name_blocks(request, request.num_prompt_tokens)
        except OverflowError:
            return "a token id is out of range"
        request.max_length = min(request.num_prompt_tokens + request.max_tokens, self.config.max_length)
        request.arrived_s = self._now()
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._waiting.add(request)
        return None

    def schedule(self) -> Batch | None:
        """Plan the next step.

        None if there is nothing to compute before the ids of an earlier step are known (or, in dynamic batching,
        before `opens_at_s`; in static batching, before more rows have come).
        """
        assert len(self._flights) <= self.config.steps_ahead, "update() the batches planned before"
        running, keeps_seats = self._running, self._running.mode.keeps_seats
        running.release_ended()
        prompts, grants, decodes = self._take_prompts_alone(), list[BlockGrant](), DecodeLists()
        if not prompts.chunks:
            grants, decodes = running.advance(), running.decodes.lists()
            may_join = self._shape.is_mixed or keeps_seats or not decodes.seats
            if may_join and self._has_prompts():
                prompts = self._take_prompts(self._limits.num_tokens - len(decodes.seats))
        if not prompts.chunks and not decodes.seats:
            is_awaited = self._flights or self.opens_at_s is not None or (keeps_seats and self.more_is_coming)
            if self.has_work and not is_awaited:
                self._watchdog.stuck(self._state())
            return None
        self._step += 1
        self._shape.planned(has_prompts=bool(prompts.chunks), has_decodes=bool(decodes.seats))
        left = running.seats.take_left()
        batch = Batch(self._step, left, prompts.entered, grants, prompts.chunks, decodes.seats, decodes.request_ids)
        self._flights.append(Flight(batch, prompts.sampling, decodes, running.launched(prompts.sampling)))
        return batch

    def took(self, batch: Batch, seconds: float) -> None:
        """A batch took so long on its device: what the shape of later ones is chosen by. Need not be told."""
        self._shape.took(batch.num_prefill_tokens, len(batch.decode_seats), seconds)

    def update(
        self, batch: Batch, token_ids: Sequence[int], endings: Mapping[int, Ending] = NO_ENDINGS
    ) -> list[Request]:
        """Take a batch's sampled ids (chunks that sample, then decode seats); returns the requests that finished.

        `endings` are decided outside, by id of a request that was ever admitted, and win over the scheduler's own
        reasons. Ids of rows that had ended before this batch are ignored.
        """
        if not self._flights and batch.step <= self._num_steps_known:
            return []  # dropped meanwhile
        flight = self._flights.popleft()
        assert flight.batch is batch, "batches are updated in the order they were scheduled"
        self._num_steps_known = batch.step
        now = self._now() if flight.sampling else 0.0
        for request in flight.sampling:
            if request.first_token_s is None:
                request.first_token_s = now
        self.num_sampled_tokens += flight.num_awaited
        finished = []
        for request, ending in flight.take_ids(token_ids, endings, self._unfinished):
            self._running.finish(request, ending)
            del self._unfinished[request.request_id]
            self._forecast.observe(request)
            self._plan.finished()
            finished.append(request)
        if finished and self._running.mode.keeps_seats:
            self._running.release_ended()
        if not flight.samples:
            self._watchdog.stepped(samples=False, state=self._state())
        elif self._watchdog.is_worried:
            self._watchdog.stepped(samples=True, state={})
        return finished

    def take_back(self, batch: Batch) -> bool:
        """The batch planned last could not be computed, and all before it have been updated: its rows wait again.

        Steps are at most half as large from now on. False, and nothing is changed, if they can have one token only.
        """
        assert len(self._flights) == 1 and self._flights[0].batch is batch, "the last batch, and no other on its way"
        if not self._limits.halve():
            return False
        self._num_steps_known = batch.step
        self._running.take_back(self._flights.pop())
        return True

    def num_quiet_steps(self) -> int:
        """How many coming steps would only repeat the last one: the same rows decode, none grows or ends by count."""
        running = self._running
        if self._flights or running.prefilling or not len(running.decodes):
            return 0
        if self._waiting and running.seats.has_free and not running.mode.is_sealed:
            return 0
        return running.decodes.num_quiet_ticks()

    def repeat(self, num_steps: int, token_id: int) -> None:
        """As so many quiet steps in which every row makes `token_id`, which is no stop id. For simulations."""
        self.num_sampled_tokens += self._running.decodes.repeat(num_steps, token_id)
        self._step += num_steps
        self._num_steps_known = self._step

    def drop_all(self) -> list[Request]:
        """On stop: every unfinished request leaves, and what was planned is forgotten."""
        dropped = {request.arrival: request for request in (*self._running, *self._waiting)}
        for flight in self._flights:
            dropped |= {request.arrival: request for request in flight.ending}
        self._running.clear()
        self._waiting.clear()
        self._flights.clear()
        self._unfinished.clear()
        self._num_steps_known = self._step
        return [dropped[arrival] for arrival in sorted(dropped) if not dropped[arrival].is_finished]

    def check(self) -> None:
        """Every invariant that holds between two calls. For tests: it looks at everything."""
        self._running.check()
        self._waiting.check()
        assert self.room >= 0

    # planning

    def _has_prompts(self) -> bool:
        return bool(self._running.prefilling or (self._running.seats.has_free and self._waiting))

    def _take_prompts(self, budget: int) -> StepPrompts:
        taken = self._prompts.take(
            budget,
            step=self._step,
            num_steps_known=self._num_steps_known,
            more_is_coming=self.more_is_coming,
            may_grow=self.more_is_coming and self.room > 0,
        )
        for request in taken.started:
            self._unfinished[request.request_id] = request
        return taken

    def _take_prompts_alone(self) -> StepPrompts:
        """Those of a step for which the decode rows pause; none if it is not the time for one."""
        running, waiting = self._running, self._waiting
        if self._shape.is_mixed or running.mode.keeps_seats or not len(running.decodes) or not self._has_prompts():
            return StepPrompts()
        is_due = self._shape.pauses_decodes(
            is_under_way=bool(running.prefilling),
            num_free=running.seats.num_free,
            num_waiting=len(waiting),
            waiting_tokens=waiting.num_prompt_tokens,
        )
        return self._take_prompts(self._limits.num_tokens) if is_due else StepPrompts()

    def _state(self) -> dict[str, int]:
        return {
            "running": self.num_running,
            "waiting": self.num_waiting,
            "live blocks": self.num_live_blocks,
            "cached blocks": self.num_cached_blocks,
            "free blocks": self.num_free_blocks,
            "steps": self._step,
        }
