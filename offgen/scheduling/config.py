"""What a scheduler is told once: limits, pool, policies. Checked when it is built, never changed after."""

from __future__ import annotations

from dataclasses import dataclass

BATCHINGS = ("continuous", "dynamic", "static")
STEP_SHAPES = ("mixed", "separate", "measured")
ORDER_POLICIES = ("auto", "input", "longest-first", "prefix")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of the pool, and the policies.

    max_num_seqs             rows that run at once (seats)
    max_num_batched_tokens   token budget of a step; rows that run at once are never more than this
    num_blocks, block_size   the KV pool
    window, window_tokens    how far ahead the job is seen: waiting rows, and their prompt tokens in all
    steps_ahead              batches that may be planned before the ids of the last one are known: 0 or 1
    step_shape               prompts in the steps of decode rows, in steps of their own, or as measured (step_shape.py)
    dynamic_wait_s           `dynamic` closes a batch when its oldest row has waited this long
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    block_size: int = 16
    num_blocks: int = 4096
    prefix_caching: bool = True
    chunked_prefill: bool = True
    batching: str = "continuous"
    order_policy: str = "auto"
    step_shape: str = "mixed"
    window: int = 16_384
    window_tokens: int = 8_388_608
    steps_ahead: int = 0
    dynamic_wait_s: float = 0.05

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_blocks", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.batching not in BATCHINGS:
            raise ValueError(f"batching must be one of {', '.join(BATCHINGS)}, not {self.batching!r}")
        if self.order_policy not in ORDER_POLICIES:
            raise ValueError(f"order_policy must be one of {', '.join(ORDER_POLICIES)}, not {self.order_policy!r}")
        if self.step_shape not in STEP_SHAPES:
            raise ValueError(f"step_shape must be one of {', '.join(STEP_SHAPES)}, not {self.step_shape!r}")
        if self.steps_ahead not in (0, 1):
            raise ValueError(f"steps_ahead must be 0 or 1, not {self.steps_ahead}")

    @property
    def num_seats(self) -> int:
        """Every running row takes part in every step, so there are never more of them than tokens in a step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def max_length(self) -> int:
        """Tokens (prompt and output) a row can ever have: the context, or what the whole pool holds."""
        return min(self.max_model_len, self.num_blocks * self.block_size)

    @property
    def order_policy_in_use(self) -> str:
        """`auto` is the input order where rows cannot enter one by one: legacy batchers take them as they come."""
        return "input" if self.order_policy == "auto" and self.batching != "continuous" else self.order_policy

    @property
    def max_step_tokens(self) -> int:
        """The most tokens one batch can have: the budget, unless prompts must be taken whole."""
        if self.chunked_prefill:
            return self.max_num_batched_tokens
        return max(self.max_num_batched_tokens, self.max_length + self.num_seats)
