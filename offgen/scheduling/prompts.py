"""Which prompts take part in a step: those under way go on, then waiting rows start. Knows budget, seats and blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from offgen.scheduling.batch import Chunk, Entry
from offgen.scheduling.block_manager import BlockManager
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.memory_plan import MemoryPlan
from offgen.scheduling.pace import Pace
from offgen.scheduling.request import Request
from offgen.scheduling.running import RunningRows
from offgen.scheduling.step_limits import StepLimits
from offgen.scheduling.waiting import WaitingQueue


@dataclass(slots=True)
class StepPrompts:
    """`started` are the requests that entered, `sampling` those whose chunk samples."""

    entered: list[Entry] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    started: list[Request] = field(default_factory=list)
    sampling: list[Request] = field(default_factory=list)


class Prompts:
    """Takes prompts into steps while budget, seats and blocks last."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        blocks: BlockManager,
        plan: MemoryPlan,
        waiting: WaitingQueue,
        running: RunningRows,
        limits: StepLimits,
        now: Callable[[], float],
    ) -> None:
        self._block_size = config.block_size
        self._blocks = blocks
        self._plan = plan
        self._waiting = waiting
        self._running = running
        self._limits = limits
        self._now = now
        self._pace = Pace()

    def take(
        self, budget: int, *, step: int, num_steps_known: int, more_is_coming: bool, may_grow: bool
    ) -> StepPrompts:
        """Up to `budget` tokens of them. `may_grow`: more rows are coming, and the window has room for them."""
        taken = StepPrompts()

        def add_chunk(request: Request) -> int:
            chunk = self._next_chunk(request, budget)
            taken.chunks.append(chunk)
            if chunk.samples:
                taken.sampling.append(request)
            return chunk.length

        for request in self._running.prefilling:
            if budget < 1:
                return taken
            budget -= add_chunk(request)
        if not self._running.mode.is_open(self._waiting, len(self._running), now=self._now(), may_grow=may_grow):
            return taken
        size = self._block_size
        pace = self._pace.most_rows(self._running, self._waiting, step=step, more_is_coming=more_is_coming)
        while self._running.seats.has_free and len(self._running) < min(pace, self._limits.num_rows):
            candidate = self._waiting.peek()
            if candidate is None:
                break
            if candidate.resumes_after > num_steps_known:
                return taken  # its last token is still under way
            cached = self._blocks.find_cached(candidate)
            num_cached = len(cached) * size
            if not self._limits.admits(candidate.num_tokens - num_cached, budget, is_first=not taken.chunks):
                return taken
            num_blocks = -(-self._running.mode.reserved_tokens(candidate) // size)
            if not self._fits_memory(candidate, self._blocks.num_missing(cached, num_blocks), step):
                break
            self._waiting.pop(candidate)
            taken.started.append(candidate)
            taken.entered.append(self._running.enter(candidate, cached, num_blocks, num_cached))
            budget -= add_chunk(candidate)
        self._running.mode.seal()
        return taken

    def _fits_memory(self, request: Request, num_missing: int, step: int) -> bool:
        if num_missing > self._blocks.num_available:
            return False
        if self._running.mode.keeps_seats or not self._running:
            return True
        return self._plan.admits(
            request, num_missing=num_missing, num_live=self._blocks.num_live, running=self._running, step=step
        )

    def _next_chunk(self, request: Request, budget: int) -> Chunk:
        """As much of the request's known tokens as the budget allows."""
        start = request.num_prefilled
        length = self._limits.chunk(request.num_tokens - start, budget)
        end = request.num_prefilled = start + length
        self._blocks.publish(request, end)
        return Chunk(request.request_id, request.seat, start, length, samples=end == request.num_tokens)
