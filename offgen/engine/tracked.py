"""A request as the engine knows it: the prompt behind it, the text watch, what has been sampled so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offgen.records import Completion, Prompt, RequestStats, RowError, TokenLogprob, Watch
from offgen.scheduling.request import Request


@dataclass(slots=True)
class Tracked:
    """Written by the engine's loop, except `prompt_logprobs`, which the runner fills in as chunks are computed."""

    prompt: Prompt
    sample_index: int
    request: Request
    watch: Watch | None
    watches_stops: bool
    logprobs: list[TokenLogprob | None] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    error: RowError | None = field(default=None)

    def completion(self) -> Completion:
        """What the finished request says; call once the scheduler has given it a finish_reason."""
        request = self.request
        if self.error is not None:
            return failed(self.prompt, self.sample_index, self.error, stats=self._stats())
        token_ids = list(request.output_ids)
        return Completion(
            row=self.prompt.row,
            sample_index=self.sample_index,
            num_samples=self.prompt.params.n,
            text=self.watch.text(token_ids) if self.watch is not None else None,
            finish_reason=request.finish_reason or "stop",
            stop_reason=request.stop_reason,
            num_prompt_tokens=len(self.prompt.token_ids),
            num_completion_tokens=len(token_ids),
            token_ids=token_ids,
            stats=self._stats(),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _stats(self) -> RequestStats:
        request = self.request
        num_tokens = len(request.output_ids)
        first, last = request.first_token_s, request.finished_s
        return RequestStats(
            queue_s=_since(request.scheduled_s, request.arrived_s),
            ttft_s=_since(first, request.arrived_s),
            tpot_s=(last - first) / (num_tokens - 1)
            if first is not None and last is not None and num_tokens > 1
            else None,
            e2e_s=_since(last, request.arrived_s),
            cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            truncated=self.prompt.truncated,
        )


def failed(prompt: Prompt, sample_index: int, error: RowError, *, stats: RequestStats | None = None) -> Completion:
    """The completion of a row that has an error in place of text."""
    return Completion(
        row=prompt.row,
        sample_index=sample_index,
        num_samples=prompt.params.n,
        num_prompt_tokens=len(prompt.token_ids),
        error=error,
        stats=stats or RequestStats(truncated=prompt.truncated),
    )


def failed_samples(prompt: Prompt, error: RowError) -> Sequence[Completion]:
    """One error completion for each sample the row asked for."""
    return [failed(prompt, index, error) for index in range(prompt.params.n)]


def _since(moment: float | None, start: float | None) -> float | None:
    return moment - start if moment is not None and start is not None else None
