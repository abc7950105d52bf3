"""The loop: prompts in, completions out in finishing order. Knows rows as requests; knows neither text nor files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic, perf_counter, sleep

import torch

from offgen.backends.base import Backend
from offgen.engine.intake import PromptSource, as_source
from offgen.engine.kv_cache import Sizing
from offgen.engine.model_runner import Launched, ModelRunner, StepResult
from offgen.engine.step_clock import StepClock
from offgen.engine.tracked import Tracked, failed_samples
from offgen.errors import JobError
from offgen.records import Completion, Prompt, RowError
from offgen.scheduling.batch import Batch
from offgen.scheduling.request import Ending, Request
from offgen.scheduling.scheduler import Scheduler
from offgen.stats.engine import EngineStats, StepTrace

MOMENT_S = 0.002  # between two looks at the source while a dynamic batch is held open


class Engine:
    """Continuous batching over one model. Build with `open_engine`.

    One thread calls `generate`; any thread, or a signal handler, may call `stop`.
    """

    def __init__(
        self,
        *,
        runner: ModelRunner,
        scheduler: Scheduler,
        backend: Backend,
        sizing: Sizing,
        eos_ids: frozenset[int],
        stats: EngineStats,
        about: Mapping[str, object],
    ) -> None:
        self.stats = stats
        self.sizing = sizing
        self._runner = runner
        self._scheduler = scheduler
        self._backend = backend
        self._steps_ahead = backend.steps_ahead
        self._eos_ids = eos_ids
        self._about = about
        self._tracked: dict[int, Tracked] = {}
        self._clock = StepClock()
        self._next_id = 0
        self._is_stopped = False

    @property
    def max_model_len(self) -> int:
        """Most tokens, prompt and completion together, that one row may have."""
        return self.sizing.max_model_len

    def describe(self) -> dict[str, object]:
        """Device, dtype, sizes, and why they were chosen; JSON-able."""
        sizing = self.sizing
        sizes = {name: getattr(sizing, name) for name in sizing.__slots__ if name != "why"}
        return {**self._about, **sizes, "step_shape": self._scheduler.step_shape, "why": dict(sizing.why)}

    def stop(self) -> None:
        """Make `generate` return after the step under way; rows in flight are dropped."""
        self._is_stopped = True

    def generate(self, prompts: Iterable[Prompt] | PromptSource) -> Iterator[Completion]:
        """Serve prompts, pulled as room appears, and yield each completion as it finishes.

        Closing the generator, or an exception, leaves the engine empty and usable.
        """
        source = as_source(prompts)
        self._is_stopped = False
        self._clock = StepClock()
        launched: Launched | None = None
        is_idle = True
        try:
            while not self._is_stopped:
                yield from self._admit(source, wait=is_idle)
                batch = self._schedule(more_is_coming=not source.is_exhausted)
                current = self._launch(batch) if batch else None
                if launched is not None:
                    yield from self._finish(launched)
                if batch and current is None:
                    self._take_back(batch)
                launched = current
                if launched is not None and not self._steps_ahead:
                    yield from self._finish(launched)
                    launched = None
                if launched is None and source.is_exhausted and not self._scheduler.has_work:
                    return
                is_idle = batch is None and launched is None and not self._waits_for_time()
        finally:
            self._scheduler.drop_all()
            self._tracked.clear()

    def _admit(self, source: PromptSource, *, wait: bool) -> Iterator[Completion]:
        """Pull what the window takes; what can never run is done at once. `wait`: there is nothing else to do."""
        room = self._scheduler.room
        if room <= 0 or source.is_exhausted:
            return
        for prompt in source.take(room, wait=wait):
            if prompt.error is not None:
                yield from failed_samples(prompt, prompt.error)
                continue
            for sample_index in range(prompt.params.n):
                refusal = self._add(prompt, sample_index)
                if refusal is not None:
                    yield from failed_samples(prompt, RowError("prompt_too_long", refusal))
                    break

    def _add(self, prompt: Prompt, sample_index: int) -> str | None:
        params = prompt.params
        request = Request(
            self._next_id,
            prompt.token_ids,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_ids),
            eos_ids=self._eos_ids,
            reads_cache=params.prompt_logprobs is None,
        )
        refusal = self._scheduler.add(request)
        if refusal is not None:
            return refusal
        watch = prompt.make_watch() if prompt.make_watch is not None else None
        self._tracked[self._next_id] = Tracked(
            prompt=prompt,
            sample_index=sample_index,
            request=request,
            watch=watch,
            watches_stops=watch is not None and watch.has_stops,
            logprobs=None if params.logprobs is None else [],
            prompt_logprobs=None if params.prompt_logprobs is None else [None] * len(prompt.token_ids),
        )
        self._next_id += 1
        return None

    def _schedule(self, *, more_is_coming: bool) -> Batch | None:
        started = perf_counter()
        self._scheduler.more_is_coming = more_is_coming
        batch = self._scheduler.schedule()
        self.stats.add_span("scheduler", perf_counter() - started)
        return batch

    def _launch(self, batch: Batch) -> Launched | None:
        """None where the device's memory ran out."""
        try:
            launched = self._runner.launch(batch, self._tracked)
        except torch.OutOfMemoryError:
            return None
        self._count(batch)
        return launched

    def _take_back(self, batch: Batch) -> None:
        """Go on with smaller steps after one that ran out of memory; its rows are computed again, and lose nothing."""
        self._backend.release_memory()
        if not self._scheduler.take_back(batch):
            raise JobError(
                f"{self._backend.device} ran out of memory in a step of one token",
                hint="--gpu-memory-utilization 0.85, or end what else uses the device",
            )
        self.stats.out_of_memory_steps += 1
        if self.stats.out_of_memory_steps == 1:
            self.stats.warnings.append(
                f"{self._backend.device} ran out of memory in a step of {batch.num_tokens} tokens: "
                "steps are smaller from now on, and no row is lost (next time: --gpu-memory-utilization 0.85)"
            )

    def _waits_for_time(self) -> bool:
        """True in dynamic batching while a batch is held open for rows that may come; lets a moment pass."""
        opens_at_s = self._scheduler.opens_at_s
        if opens_at_s is None:
            return False
        sleep(min(MOMENT_S, max(0.0, opens_at_s - monotonic())))
        return True

    def _count(self, batch: Batch) -> None:
        stats, scheduler = self.stats, self._scheduler
        stats.steps += 1
        stats.prefill_tokens += batch.num_prefill_tokens
        stats.num_preemptions = scheduler.num_preemptions
        stats.recomputed_tokens = scheduler.num_recomputed_tokens
        stats.running, stats.waiting = scheduler.num_running, scheduler.num_waiting
        stats.max_running = max(stats.max_running, stats.running)
        stats.kv_blocks_used = scheduler.num_live_blocks
        stats.kv_blocks_peak = max(stats.kv_blocks_peak, stats.kv_blocks_used)

    def _finish(self, launched: Launched) -> Iterator[Completion]:
        """Read a step's ids, tell the scheduler, and hand out the rows that are done."""
        started = perf_counter()
        result = launched.result()
        seconds = self._clock.ended(launched.started_s, was_awaited=launched.sampled is not None)
        if seconds is not None:
            self._scheduler.took(launched.batch, seconds)
        waited = self._lap("sampling", started)
        # a row that has ended may still be computed: static batches, steps launched ahead
        self.stats.sampled_tokens += sum(map(self._tracked.__contains__, result.request_ids))
        endings = self._endings(result)
        waited = self._lap("detokenise", waited)
        finished = self._scheduler.update(launched.batch, result.token_ids, endings)
        self._lap("scheduler", waited)
        self.stats.sampling_steps += bool(result.token_ids)
        if self.stats.trace is not None:
            self.stats.trace.append(_traced(launched))
        for request in finished:
            yield self._complete(request)

    def _endings(self, result: StepResult) -> dict[int, Ending]:
        """What ends a row besides counts and stop ids: a stop string, or logits that are not finite."""
        endings: dict[int, Ending] = {}
        for place in result.non_finite:
            row = self._tracked.get(result.request_ids[place])
            if row is not None:
                row.error = RowError(
                    "non_finite_logits", f"the model's logits for token {row.request.num_tokens} are not finite"
                )
                endings[row.request.request_id] = Ending("error", None)
        if result.logprobs is not None:
            self._keep_logprobs(result.request_ids, result.logprobs)
        for request_id, token_id in zip(result.request_ids, result.token_ids, strict=True):
            row = self._tracked.get(request_id)
            if row is None or not row.watches_stops or row.watch is None or request_id in endings:
                continue
            stop = row.watch.push(token_id)
            if stop is not None:
                endings[request_id] = Ending("stop", stop)
        return endings

    def _keep_logprobs(self, request_ids: Sequence[int], logprobs: Sequence[object]) -> None:
        for request_id, logprob in zip(request_ids, logprobs, strict=True):
            row = self._tracked.get(request_id)
            if row is not None and row.logprobs is not None:
                row.logprobs.append(logprob)  # type: ignore[arg-type]

    def _complete(self, request: Request) -> Completion:
        started = perf_counter()
        row = self._tracked.pop(request.request_id)
        self.stats.cached_tokens += request.num_cached_tokens
        completion = row.completion()
        self._lap("detokenise", started)
        return completion

    def _lap(self, name: str, since: float) -> float:
        now = perf_counter()
        self.stats.add_span(name, now - since)
        return now


def _traced(launched: Launched) -> StepTrace:
    batch = launched.batch
    return StepTrace(
        num_prefill_tokens=batch.num_prefill_tokens,
        num_decode_rows=len(batch.decode_seats),
        num_kv_tokens=launched.num_kv_tokens,
        seconds=perf_counter() - launched.started_s,
    )
