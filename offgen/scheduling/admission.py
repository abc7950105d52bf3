"""Why a request can never be served, whatever the others do."""

from __future__ import annotations

from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.request import Request


def refusal(request: Request, config: SchedulerConfig) -> str | None:
    """A sentence for the row's error; None if the request fits an empty pool."""
    if not request.prompt_ids:
        return "the prompt has no tokens"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}: at least one token is made"
    if request.num_prompt_tokens + 1 > config.max_length:
        limit = "the context" if config.max_length == config.max_model_len else "the KV pool"
        return (
            f"the prompt has {request.num_prompt_tokens} tokens, {limit} holds {config.max_length} "
            "and one of them is for the first new token"
        )
    return None
