"""What a user may ask of sampling, one frozen dataclass per row. Pure: knows no tensor.

Names and meanings are those of vLLM's SamplingParams.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GREEDY_EPSILON = 1e-5  # a temperature below this is greedy: dividing by it would overflow float32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one row is sampled. Build from user input with `from_dict`, which checks; every field has a neutral default."""

    n: int = 1
    max_tokens: int = 512
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = field(default=())  # bad_words as text/ tokenized them
    skip_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON
