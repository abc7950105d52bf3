"""Memory on a card that measures, refuses and runs out: the pool, the step, and what the rows make all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offgen.engine import Engine, EngineOptions, open_engine
from offgen.errors import JobError, UsageError
from offgen.records import Prompt
from tests.engine.fake_card import FakeCard
from tests.engine.tiny import CONTEXT, outputs, prompt_of, random_prompts

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


def test_a_card_that_weights_and_step_fill_says_what_to_try(folder: Path) -> None:
    with pytest.raises(UsageError, match="leave no room for a KV pool"):
        open_on_card(folder, {"total": 1_000_000, "used": 900_000})


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


@pytest.fixture(scope="module")
def rows() -> list[Prompt]:
    """Greedy and drawn rows, some that begin alike, some with penalties and log-probabilities of their prompt."""
    made = []
    for p in random_prompts(20, seed=4, longest=50):
        i = p.row.row_id
        ids = [*range(40, 75), *p.token_ids[:20]] if i % 3 == 0 else p.token_ids
        asks: dict[str, Any] = {"temperature": 0.8 * (i % 2), "frequency_penalty": 0.1 * (i % 4), "seed": i}
        made.append(prompt_of(i, list(ids), max_tokens=1 + i, prompt_logprobs=1 if i % 5 == 0 else None, **asks))
    return made


@pytest.fixture(scope="module")
def undisturbed(folder: Path, rows: list[Prompt]) -> dict[tuple[int, int], list[int]]:
    return outputs(open_on_card(folder, {}, num_blocks=64)[0].generate(rows))


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 24, "max_num_seqs": 6},
        {"chunked_prefill": False},
        {"prefix_caching": False, "num_blocks": 12},
        {"batching": "static", "max_num_seqs": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("failing", [{1}, {2, 3}, {5}, {9, 10, 20}, {4, 12}], ids=str)
def test_steps_that_run_out_of_memory_change_no_row(
    folder: Path,
    rows: list[Prompt],
    undisturbed: dict[tuple[int, int], list[int]],
    failing: set[int],
    options: dict[str, Any],
    steps_ahead: int,
) -> None:
    card = {"failing": failing, "steps_ahead": steps_ahead}
    engine, fake = open_on_card(folder, card, **{"num_blocks": 64, **options})
    assert outputs(engine.generate(rows)) == undisturbed
    assert engine.stats.out_of_memory_steps == fake.num_failures == len(failing)
    assert len(engine.stats.warnings) == 1 and "ran out of memory" in engine.stats.warnings[0]
    assert fake.num_releases == len(failing)


@pytest.mark.parametrize("options", [{}, {"chunked_prefill": False}], ids=str)
def test_steps_shrink_until_they_fit(
    folder: Path, rows: list[Prompt], undisturbed: dict[tuple[int, int], list[int]], options: dict[str, Any]
) -> None:
    engine, fake = open_on_card(folder, {"max_tokens": 9}, num_blocks=64, **options)
    assert outputs(engine.generate(rows)) == undisturbed
    assert fake.largest_step <= 9
    assert 1 <= engine.stats.max_running <= 9
    assert engine.stats.out_of_memory_steps <= 8


def test_a_step_of_one_token_that_does_not_fit_ends_the_job(folder: Path, rows: list[Prompt]) -> None:
    engine, fake = open_on_card(folder, {"max_tokens": 0}, num_blocks=64)
    with pytest.raises(JobError, match="a step of one token"):
        list(engine.generate(rows))
    fake.max_tokens = None
    assert len(outputs(engine.generate(rows))) == len(rows)


def test_nothing_is_said_of_a_card_with_room(folder: Path, rows: list[Prompt]) -> None:
    engine, _ = open_on_card(folder, {}, num_blocks=64)
    list(engine.generate(rows[:3]))
    assert (engine.stats.warnings, engine.stats.out_of_memory_steps) == ([], 0)
