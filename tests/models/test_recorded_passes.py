"""Forward passes that the CPU backend recorded, against the same passes op by op: every bit, in steps of any mix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import paged_rows
import pytest
import torch
import transformers
from test_families import CASES, SMALL

from offgen.backends import cpu_pool, open_backend
from offgen.backends.cpu_memory import CHUNK_BYTES, FreeRanges, StepMemory
from offgen.backends.cpu_program import Replayed
from offgen.models import load_model

PROMPTS = [[5, 9, 17, 40, 3], [7] * 23, [11], list(range(60, 90))]
WITH_TORCH_OPS = ("gemma", "granite", "olmo")  # their passes compute with torch between the kernels


class Checked:
    """A model whose captured forward is compared with its own, pass by pass, each with caches of its own."""

    def __init__(self, model: Any, backend: Any, make_caches: Any) -> None:
        self._model, self.config, self.compute_logits = model, model.config, model.compute_logits
        self.captured = backend.capture(model.forward)
        self.caches = make_caches()
        self.sizes: set[int] = set()

    def forward(self, token_ids: torch.Tensor, kv_caches: list[Any], inputs: Any) -> torch.Tensor:
        expected = self._model.forward(token_ids, kv_caches, inputs)
        assert torch.equal(self.captured(token_ids, self.caches, inputs), expected)
        self.sizes.add(len(token_ids))
        return expected


def checked(folder: Path, **options: Any) -> tuple[Checked, Any]:
    backend = open_backend("cpu", **{"dtype": "float32", "threads": 2, **options})
    model = load_model(folder, backend)
    spec = list(model.config.attention)
    return Checked(model, backend, lambda: backend.allocate_kv(len(spec), 60, 4, spec)), backend


def saved(case: str, folder: Path) -> Path:
    family, options = CASES[case]
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **options})
    return oracle.save(oracle.randomize(transformers.AutoModelForCausalLM.from_config(config)), folder)


@pytest.mark.parametrize("case", CASES)
def test_every_family(case: str, tmp_path: Path) -> None:
    model, backend = checked(saved(case, tmp_path))
    paged_rows.generate(model, backend, PROMPTS, max_tokens=12, chunk=7)
    assert isinstance(model.captured, Replayed)
    assert model.captured.can_replay == (not case.startswith(WITH_TORCH_OPS))
    assert len(model.sizes) > 4


@pytest.mark.parametrize(
    "options",
    [{"quantization": "int8"}, {"kv_cache_dtype": "bf16"}, {"kv_cache_dtype": "int8"}, {"threads": 1}, {"threads": 3}],
    ids=str,
)
def test_every_kind_of_weight_cache_and_thread_count(options: dict[str, Any], tmp_path: Path) -> None:
    model, backend = checked(saved("qwen3", tmp_path), **options)
    paged_rows.generate(model, backend, PROMPTS, max_tokens=12, chunk=7)
    assert model.captured.can_replay


def test_one_program_serves_all_steps_up_to_its_capacity(tmp_path: Path) -> None:
    model, backend = checked(saved("llama", tmp_path))
    paged_rows.generate(model, backend, PROMPTS, max_tokens=12, chunk=40)
    assert model.sizes == {1, 2, 3, 4, 5, 24, 33} and model.captured.num_programs == 3


def test_other_caches_are_not_those_that_were_recorded(tmp_path: Path) -> None:
    model, backend = checked(saved("llama", tmp_path))
    for _ in range(2):
        paged_rows.generate(model, backend, PROMPTS, max_tokens=3)
        spec = list(model.config.attention)
        model.caches = backend.allocate_kv(len(spec), 60, 4, spec)


def test_without_openmp_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_pool, "_openmp", lambda: (None, 0))
    model, _ = checked(saved("llama", tmp_path))
    assert not isinstance(model.captured, Replayed)


def test_memory_serves_again_once_no_tensor_is_over_it() -> None:
    memory = StepMemory()
    memory.start(2, 2)
    first = memory.empty(4, 100)
    view, second = first.view(-1)[10:], memory.empty(50)
    del first
    assert memory.empty(400).data_ptr() > second.data_ptr(), "a view holds the range"
    where = view.data_ptr() - 40
    del view
    assert memory.empty(2, 200).data_ptr() == where
    memory.stop()
    memory.start(1, 1)  # another recording: nobody waits for what the last one holds
    assert memory.empty(1).data_ptr() == where
    assert memory.empty(CHUNK_BYTES, dtype=torch.uint8).shape == (CHUNK_BYTES,)
    memory.stop()


def test_free_ranges_grow_together_again() -> None:
    ranges = FreeRanges([1000])
    taken = [ranges.take(100) for _ in range(10)]
    assert ranges.take(1) is None
    for place in (3, 1, 2, 9, 0, 4, 8, 6, 7, 5):
        chunk, begin = taken[place] or (0, 0)
        ranges.give_back(chunk, begin, begin + 100)
    assert ranges.take(1000) == (0, 0)
