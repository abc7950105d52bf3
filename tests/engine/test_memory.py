"""Memory on a card that measures, refuses and runs out: the pool, the step, and what the rows make all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offgen.engine import Engine, EngineOptions, open_engine
from offgen.errors import JobError, UsageError
from tests.engine.fake_card import FakeCard
from tests.engine.tiny import CONTEXT, outputs, random_prompts

BLOCK_BYTES = 6144  # of the tiny model in float32, as the CPU backend pads its heads


def open_on_card(folder: Path, card: dict[str, Any], **options: Any) -> tuple[Engine, FakeCard]:
    cards: list[FakeCard] = []

    def wrap(backend: Any) -> Any:
        cards.append(FakeCard(backend, **card))
        return cards[0]

    engine = open_engine(folder, EngineOptions(device="cpu", threads=1, **options), wrap=wrap)
    return engine, cards[0]


def test_the_pool_is_what_weights_and_the_largest_step_leave(folder: Path) -> None:
    card = {"total": 600_000, "used": 100_000, "step_bytes": 1000}
    engine, fake = open_on_card(folder, card, max_num_seqs=10, max_num_batched_tokens=64)
    assert fake.measured == [64]
    assert engine.sizing.num_blocks == (552_000 - 100_000 - 64_000 - 10 * 100) // BLOCK_BYTES
    why = engine.sizing.why["num_blocks"]
    assert "0.92 of the device" in why and "64 tokens in 10 rows" in why


def test_no_graphs_no_memory_for_them(folder: Path) -> None:
    card = {"total": 600_000}
    sizes = [
        open_on_card(folder, card, max_num_batched_tokens=64, enforce_eager=eager)[0].sizing.num_blocks
        for eager in (True, False)
    ]
    assert sizes == [(552_000 - 64_000 - graphs) // BLOCK_BYTES for graphs in (0, 12_800)]


def test_a_step_that_does_not_fit_beside_the_weights_is_halved_until_it_does(folder: Path) -> None:
    engine, fake = open_on_card(folder, {"max_tokens": 20}, max_num_batched_tokens=64)
    assert fake.measured == [16]
    assert engine.sizing.max_num_batched_tokens == 16 == engine.sizing.max_num_seqs
    assert "64 tokens does not fit" in engine.sizing.why["max_num_batched_tokens"]
    assert len(outputs(engine.generate(random_prompts(6, max_tokens=4)))) == 6


def test_a_card_without_room_for_a_token_says_so(folder: Path) -> None:
    with pytest.raises(JobError, match="no room for a step"):
        open_on_card(folder, {"max_tokens": 0})


def test_whole_prompts_are_not_cut_in_secret(folder: Path) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        open_on_card(folder, {"max_tokens": 20}, chunked_prefill=False)


def test_a_pool_that_was_asked_for_is_not_measured(folder: Path) -> None:
    engine, fake = open_on_card(folder, {}, num_blocks=33)
    assert (fake.measured, engine.sizing.num_blocks) == ([], 33)


def test_a_pool_that_is_refused_shrinks_and_the_job_runs(folder: Path) -> None:
    engine, fake = open_on_card(folder, {"most_blocks": 20}, num_blocks=50)
    assert 18 <= engine.sizing.num_blocks <= 20
    assert engine.sizing.kv_bytes == engine.sizing.num_blocks * BLOCK_BYTES
    assert engine.stats.kv_blocks == engine.sizing.num_blocks
    assert engine.sizing.why["num_blocks"].startswith("50 did not fit")
    assert engine.max_model_len == CONTEXT and fake.num_releases > 0
    assert len(outputs(engine.generate(random_prompts(6, max_tokens=4)))) == 6


def test_a_pool_smaller_than_the_context_shortens_it(folder: Path) -> None:
    engine, _ = open_on_card(folder, {"most_blocks": 5}, num_blocks=50)
    assert engine.max_model_len == engine.sizing.num_blocks * 16 < CONTEXT
    assert "KV pool holds" in engine.sizing.why["max_model_len"]


def test_no_pool_at_all_is_an_error(folder: Path) -> None:
    with pytest.raises(JobError, match="no room for a KV pool"):
        open_on_card(folder, {"most_blocks": 0}, num_blocks=50)


def test_a_cpu_measures_nothing(folder: Path) -> None:
    engine = open_engine(folder, EngineOptions(device="cpu", threads=1))
    assert "measured" not in engine.sizing.why["num_blocks"]
