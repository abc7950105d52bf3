"""Plays a workload through the very scheduler of a job, against a cost model instead of a machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from offgen.scheduling.batch import Batch
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.cost_model import CostModel
from offgen.scheduling.prefix_cache import extend_hashes
from offgen.scheduling.request import Ending, Request, RequestState
from offgen.scheduling.scheduler import Scheduler
from offgen.scheduling.workload import SimulatedRow

STOPPED = Ending("stop")
WORK_BEFORE_TAIL = 0.98


@dataclass(slots=True)
class Simulation:
    """What came of it. `bubble_ratio` as in a report: 1 - sampled tokens / (steps that sample x most rows at once)."""

    batching: str
    rows: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0  # computed
    makespan_s: float = 0.0
    steps: int = 0
    sampling_steps: int = 0
    max_running: int = 0
    tail_s: float = 0.0  # time spent on the last 2% of the output tokens
    bubble_ratio_before_tail: float = 0.0
    kv_blocks: int = 0
    kv_blocks_peak: int = 0
    kv_occupancy: float = 0.0  # live share of the pool, mean over time
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    ttft_s: dict[str, float] = field(default_factory=dict)
    tpot_s: dict[str, float] = field(default_factory=dict)
    e2e_s: dict[str, float] = field(default_factory=dict)

    @property
    def bubble_ratio(self) -> float:
        return bubble_ratio(self.completion_tokens, self.sampling_steps, self.max_running)

    @property
    def completion_tokens_per_s(self) -> float:
        return self.completion_tokens / self.makespan_s if self.makespan_s else 0.0


def bubble_ratio(num_tokens: int, num_steps: int, max_running: int) -> float:
    """The share of places (one a step for each row that could run) that made no token."""
    return 1.0 - num_tokens / (num_steps * max_running) if num_steps and max_running else 0.0


def simulate(rows: Sequence[SimulatedRow], config: SchedulerConfig, cost: CostModel) -> Simulation:
    """Serve all rows; each step takes what the cost model says."""
    player = _Player(rows, config, cost)
    player.play()
    return player.result()


def limit_s(rows: Sequence[SimulatedRow], config: SchedulerConfig, cost: CostModel) -> float:
    """What no schedule can beat: all work that cannot be avoided, at the peak rate, in as few steps as seats allow."""
    num_prefill = num_decode = num_kv = num_sampled = longest = 0
    seen: set[bytes] = set()
    for row in rows:
        num_prompt = len(row.prompt_ids)
        if num_prompt + 1 > config.max_length:
            continue
        num_output = min(row.num_output_tokens, config.max_length - num_prompt)
        num_prefill += num_prompt - (_num_repeated(row, config.block_size, seen) if config.prefix_caching else 0)
        num_sampled += num_output
        num_decode += num_output - 1
        num_kv += num_prompt * num_output + num_output * (num_output - 1) // 2
        longest = max(longest, num_output)
    work = cost.seconds(num_prefill_tokens=num_prefill, num_decode_rows=num_decode, num_kv_tokens=num_kv) - cost.step_s
    return work + cost.step_s * max(longest, -(-num_sampled // config.num_seats))


def _num_repeated(row: SimulatedRow, block_size: int, seen: set[bytes]) -> int:
    """Leading tokens of the prompt in whole blocks that an earlier row has too."""
    hashes: list[bytes] = []
    extend_hashes(hashes, row.prompt_ids[: (len(row.prompt_ids) - 1) // block_size * block_size], block_size, b"")
    num_blocks = sum(name in seen for name in hashes)
    seen.update(hashes)
    return num_blocks * block_size


class _Player:
    """One run. Time is virtual; a row's own length is known here and not to the scheduler."""

    def __init__(self, rows: Sequence[SimulatedRow], config: SchedulerConfig, cost: CostModel) -> None:
        self._now = 0.0
        self._cost = cost
        self._scheduler = Scheduler(config, now=lambda: self._now)
        self._result = Simulation(config.batching, kv_blocks=config.num_blocks)
        self._coming = deque(sorted(rows, key=lambda row: row.arrival_s))
        self._num_rows = 0
        self._lengths: dict[int, int] = {}
        self._requests: dict[int, Request] = {}
        self._ends: dict[int, list[Request]] = {}  # by tick: rows that make their last token in it, unless preempted
        self._latencies: dict[str, list[float]] = {"ttft_s": [], "tpot_s": [], "e2e_s": []}
        self._tail_starts_at = WORK_BEFORE_TAIL * sum(row.num_output_tokens for row in rows)
        self._tail_started_s = 0.0
        self._occupied_s = 0.0
        self._num_decode_rows = 0  # of the next step, if nobody is preempted
        self._num_decode_tokens = 0  # KV that they read

    def play(self) -> None:
        scheduler = self._scheduler
        while self._coming or scheduler.has_work:
            self._arrive()
            batch = scheduler.schedule() if scheduler.has_work else None
            if batch is None:
                times = [self._coming[0].arrival_s] if self._coming else []
                if scheduler.has_work and scheduler.opens_at_s is not None:
                    times.append(scheduler.opens_at_s)
                if times:
                    self._now = max(self._now, min(times))
                continue
            self._step(batch)
            self._skip()

    def result(self) -> Simulation:
        result, scheduler = self._result, self._scheduler
        result.makespan_s = self._now
        result.tail_s = self._now - self._tail_started_s
        result.kv_occupancy = self._occupied_s / (self._now * result.kv_blocks) if self._now else 0.0
        result.num_preemptions = scheduler.num_preemptions
        result.recomputed_tokens = scheduler.num_recomputed_tokens
        for name, values in self._latencies.items():
            setattr(result, name, _percentiles(values))
        return result

    def _arrive(self) -> None:
        room = self._scheduler.room
        while self._coming and room and self._coming[0].arrival_s <= self._now:
            row = self._coming.popleft()
            request = Request(self._num_rows, row.prompt_ids, max_tokens=row.max_tokens)
            self._num_rows += 1
            if self._scheduler.add(request) is not None:
                self._result.refused += 1
                self._tail_starts_at -= WORK_BEFORE_TAIL * row.num_output_tokens
                continue
            room = self._scheduler.room
            request.arrived_s = row.arrival_s
            self._requests[request.request_id] = request
            self._lengths[request.request_id] = row.num_output_tokens

    def _step(self, batch: Batch) -> None:
        result, scheduler = self._result, self._scheduler
        num_prefill = num_chunk_tokens = 0
        sampling: list[Request] = []
        for chunk in batch.chunks:
            num_prefill += chunk.length
            num_chunk_tokens += chunk.start + chunk.length
            if chunk.samples:
                sampling.append(self._requests[chunk.request_id])
                self._expect_end(sampling[-1])
        num_decode = len(batch.decode_seats)
        num_kv = self._count_decode_tokens(batch) + num_chunk_tokens
        seconds = self._cost.seconds(num_prefill_tokens=num_prefill, num_decode_rows=num_decode, num_kv_tokens=num_kv)
        self._now += seconds
        num_live = scheduler.num_live_blocks
        self._occupied_s += seconds * num_live
        result.kv_blocks_peak = max(result.kv_blocks_peak, num_live)
        result.max_running = max(result.max_running, scheduler.num_running)
        result.steps += 1
        result.prefill_tokens += num_prefill
        result.sampling_steps += bool(sampling or num_decode)
        ends = self._ends.pop(scheduler.tick, ())
        endings = {request.request_id: STOPPED for request in ends if self._is_last(request)}
        finished = scheduler.update(batch, [0] * (len(sampling) + num_decode), endings)
        scheduler.took(batch, seconds)
        self._foresee_decodes(num_decode, sampling, finished)
        for request in finished:
            self._finish(request)
        self._note_tail()

    def _skip(self) -> None:
        """Take the steps at once in which nothing happens but that each row makes a token."""
        scheduler, result = self._scheduler, self._result
        num_steps = scheduler.num_quiet_steps()
        if self._ends:
            num_steps = min(num_steps, min(self._ends) - scheduler.tick - 1)
        rows = scheduler.num_decoding
        if num_steps < 2 or rows != self._num_decode_rows or (self._coming and scheduler.room):
            return
        num_left = self._tail_starts_at - scheduler.num_sampled_tokens
        if num_left > 0:  # not past the start of the tail
            num_steps = min(num_steps, max(1, int(num_left // rows)))
        first = self._cost.seconds(num_prefill_tokens=0, num_decode_rows=rows, num_kv_tokens=self._num_decode_tokens)
        growth = self._cost.kv_byte_s * self._cost.kv_bytes_per_token * rows
        seconds = num_steps * first + growth * num_steps * (num_steps - 1) / 2
        self._now += seconds
        self._occupied_s += seconds * scheduler.num_live_blocks
        result.steps += num_steps
        result.sampling_steps += num_steps
        scheduler.repeat(num_steps, 0)
        self._num_decode_tokens += rows * num_steps
        self._note_tail()

    def _expect_end(self, request: Request) -> None:
        """It makes a token now and in each later tick, unless it is preempted and comes here again."""
        num_left = self._lengths[request.request_id] - len(request.output_ids) - 1
        if self._lengths[request.request_id] < request.max_length - request.num_prompt_tokens:
            self._ends.setdefault(self._scheduler.tick + num_left, []).append(request)

    def _is_last(self, request: Request) -> bool:
        is_running = request.state in (RequestState.DECODING, RequestState.LAST_STEP)
        return is_running and len(request.output_ids) + 1 == self._lengths[request.request_id]

    def _count_decode_tokens(self, batch: Batch) -> int:
        """Tokens whose KV the decode rows read; kept up by _step, counted anew when other rows came or went."""
        if len(batch.decode_seats) != self._num_decode_rows:
            requests = self._requests
            self._num_decode_tokens = sum(requests[request_id].num_tokens for request_id in batch.decode_request_ids)
        return self._num_decode_tokens

    def _foresee_decodes(self, num_decode: int, joined: list[Request], finished: list[Request]) -> None:
        """Each row grows by a token, sampling rows join, finished ones leave (unless their batch is static)."""
        self._num_decode_rows = num_decode
        self._num_decode_tokens += num_decode
        joining = {request.request_id for request in joined}
        for request in joined:
            if not request.is_finished:
                self._num_decode_rows += 1
                self._num_decode_tokens += request.num_tokens
        if self._scheduler.config.batching == "continuous":
            for request in finished:
                if request.request_id not in joining:
                    self._num_decode_rows -= 1
                    self._num_decode_tokens -= request.num_tokens

    def _note_tail(self) -> None:
        result, num_made = self._result, self._scheduler.num_sampled_tokens
        if num_made <= self._tail_starts_at:
            self._tail_started_s = self._now
            result.bubble_ratio_before_tail = bubble_ratio(num_made, result.sampling_steps, result.max_running)

    def _finish(self, request: Request) -> None:
        result = self._result
        num_output = len(request.output_ids)
        result.rows += 1
        result.prompt_tokens += request.num_prompt_tokens
        result.completion_tokens += num_output
        result.cached_tokens += request.num_cached_tokens
        assert request.first_token_s is not None and request.finished_s is not None
        self._latencies["ttft_s"].append(request.first_token_s - request.arrived_s)
        self._latencies["e2e_s"].append(request.finished_s - request.arrived_s)
        if num_output > 1:
            self._latencies["tpot_s"].append((request.finished_s - request.first_token_s) / (num_output - 1))
        if self._scheduler.config.batching == "continuous":
            del self._requests[request.request_id]  # in a static batch the row is still computed
        del self._lengths[request.request_id]


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    found = {f"p{percent}": ordered[round(percent / 100 * (len(ordered) - 1))] for percent in (50, 90, 99)}
    return {"mean": sum(ordered) / len(ordered), **found, "max": ordered[-1]}
