"""A row's tokens and log-probabilities are the same bits for any batch, order, chunk size and pool."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from offgen.engine import Engine
from offgen.records import Completion, Prompt
from tests.engine.tiny import prompt_of, random_prompts

EngineOf = Callable[..., Engine]
Bits = dict[int, list[tuple[int, float | None, tuple[tuple[int, float | None], ...]]]]


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    """Greedy and drawn rows in turn; a third of them begin alike."""
    rows = []
    for p in random_prompts(36, seed=5, longest=50):
        ids, i = list(p.token_ids), p.row.row_id
        drawing = {"temperature": 0.8, "top_p": 0.9} if i % 2 else {}
        ids = [*range(40, 75), *ids[:20]] if i % 3 == 0 else ids
        rows.append(prompt_of(i, ids, max_tokens=4 + i % 9, ignore_eos=True, seed=i, logprobs=3, **drawing))
    return rows


def bits(completions: Iterable[Completion]) -> Bits:
    found: Bits = {}
    for completion in completions:
        assert completion.error is None and completion.logprobs is not None, completion
        found[completion.row.row_id] = [(t.token_id, t.logprob, tuple(t.top)) for t in completion.logprobs]
    return found


@pytest.fixture(scope="module")
def alone(engine_of: EngineOf, prompts: list[Prompt]) -> Callable[..., Bits]:
    """Each row by itself, whole prompt at once, nothing cached."""
    kept: dict[str, Bits] = {}

    def run(**precision: Any) -> Bits:
        key = str(precision)
        if key not in kept:
            kept[key] = bits(engine_of(max_num_seqs=1, prefix_caching=False, **precision).generate(prompts))
        return kept[key]

    return run


@pytest.mark.parametrize("precision", [{}, {"quantization": "int8", "kv_cache_dtype": "int8"}], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        *({"max_num_seqs": rows} for rows in (2, 7, 36, 128)),
        *({"max_num_batched_tokens": tokens, "max_num_seqs": min(tokens, 16)} for tokens in (1, 5, 33)),
        {"num_blocks": 10},
        {"num_blocks": 9, "prefix_caching": False},
        {"order_policy": "longest-first", "block_size": 32},
        {"threads": 2},
    ],
    ids=str,
)
def test_bits_do_not_depend_on_circumstances(
    engine_of: EngineOf,
    prompts: list[Prompt],
    alone: Callable[..., Bits],
    options: dict[str, Any],
    precision: dict[str, Any],
) -> None:
    shuffled = list(prompts)
    random.Random(str(options)).shuffle(shuffled)
    assert bits(engine_of(**options, **precision).generate(shuffled)) == alone(**precision)
