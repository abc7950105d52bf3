"""Every tensor is accounted for before anything runs: tied heads, shards, strays, truncation, dtypes."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path
from typing import Any

import oracle
import paged_rows
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from offgen.backends import Backend
from offgen.backends.torch_ops import TorchBackend
from offgen.errors import UsageError
from offgen.models import checkpoint_dtype, load_config, load_model
from offgen.models.builder import ShapeBackend
from offgen.models.dummy import RandomTensors
from offgen.models.weights import open_checkpoint

PROMPTS = [[5, 9, 17, 40], [7]]
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture
def twin() -> Any:
    return oracle.randomize(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)))


@pytest.fixture
def folder(twin: Any, tmp_path: Path) -> Path:
    return oracle.save(twin, tmp_path)


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_weights(folder: Path, edit: Any) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def shard(folder: Path) -> dict[str, str]:
    """Rewrite the weights as two shards with an index."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    names = sorted(tensors)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    weight_map = {}
    for number, half in enumerate(halves, start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name].clone() for name in half}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(half, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    path.unlink()
    return weight_map


def outputs(folder: Path, backend: Backend, **options: Any) -> list[list[int]]:
    return paged_rows.generate(load_model(folder, backend, **options), backend, PROMPTS, max_tokens=6)


def truth(folder: Path) -> list[list[int]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return [oracle.greedy(model, prompt, 6) for prompt in PROMPTS]


IMPLEMENTATIONS = pytest.mark.parametrize("model_impl", ["native", "transformers"])


@IMPLEMENTATIONS
def test_tied_without_head_uses_the_embedding(folder: Path, backend: Backend, model_impl: str) -> None:
    edit_config(folder, tie_word_embeddings=True)
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert outputs(folder, backend, model_impl=model_impl) == truth(folder)


def test_tied_with_equal_head_is_fine_and_silent(folder: Path, backend: Backend) -> None:
    edit_config(folder, tie_word_embeddings=True)
    edit_weights(
        folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    )
    assert load_model(folder, backend).config.notes == ()


def test_tied_with_different_head_uses_the_embedding_and_says_so(folder: Path, backend: Backend) -> None:
    edit_config(folder, tie_word_embeddings=True)
    notes = load_model(folder, backend).config.notes
    assert len(notes) == 1 and "lm_head.weight" in notes[0] and "tie_word_embeddings" in notes[0]
    found = outputs(folder, backend)
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert found == outputs(folder, backend)


def test_untied_with_head_matches(folder: Path, backend: Backend) -> None:
    assert outputs(folder, backend) == truth(folder)


@IMPLEMENTATIONS
def test_untied_without_head_names_the_missing_tensor(folder: Path, backend: Backend, model_impl: str) -> None:
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(UsageError, match=r"lm_head\.weight.*missing"):
        load_model(folder, backend, model_impl=model_impl)


@IMPLEMENTATIONS
def test_unused_tensor_is_refused(folder: Path, backend: Backend, model_impl: str) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}
    edit_weights(folder, lambda tensors: tensors.update(bias))
    with pytest.raises(UsageError, match=r"q_proj\.bias"):
        load_model(folder, backend, model_impl=model_impl)


@IMPLEMENTATIONS
def test_misshapen_tensor_is_refused(folder: Path, backend: Backend, model_impl: str) -> None:
    edit_weights(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
    with pytest.raises(UsageError, match=r"model\.norm\.weight"):
        load_model(folder, backend, model_impl=model_impl)


@IMPLEMENTATIONS
def test_two_shards_equal_one_file(folder: Path, backend: Backend, model_impl: str) -> None:
    expected = truth(folder)
    shard(folder)
    assert outputs(folder, backend, model_impl=model_impl) == expected


@IMPLEMENTATIONS
def test_missing_shard_is_named(folder: Path, backend: Backend, model_impl: str) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UsageError, match="model-00002-of-00002"):
        load_model(folder, backend, model_impl=model_impl)


def test_index_without_any_file_is_an_error_even_beside_a_stray_single_file(folder: Path, backend: Backend) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    for file in set(shard(folder).values()):
        (folder / file).unlink()
    (folder / "model.safetensors").write_bytes(whole)
    with pytest.raises(UsageError, match="2 of 2 weight files"):
        load_model(folder, backend)


def test_stray_single_file_beside_an_index_is_ignored_aloud(folder: Path, backend: Backend) -> None:
    expected = truth(folder)
    shard(folder)
    save_file({"nonsense": torch.ones(3)}, folder / "model.safetensors")
    model = load_model(folder, backend)
    assert paged_rows.generate(model, backend, PROMPTS, max_tokens=6) == expected
    assert any("model.safetensors" in note for note in model.config.notes)


def test_wrong_copy_of_a_tensor_in_another_shard_is_ignored_aloud(folder: Path, backend: Backend) -> None:
    expected = truth(folder)
    weight_map = shard(folder)
    name = sorted(weight_map)[0]
    other = folder / "model-00002-of-00002.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(other).items()}
    save_file({**tensors, name: torch.zeros(2, 2)}, other, metadata={"format": "pt"})
    model = load_model(folder, backend)
    assert paged_rows.generate(model, backend, PROMPTS, max_tokens=6) == expected
    assert any(name in note for note in model.config.notes)


def test_tensor_that_the_index_places_in_a_file_without_it_is_named(folder: Path, backend: Backend) -> None:
    weight_map = shard(folder)
    name = sorted(weight_map)[-1]
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {**weight_map, name: "model-00001-of-00002.safetensors"}}))
    with pytest.raises(UsageError, match=name):
        load_model(folder, backend)


@pytest.mark.parametrize("keep", [0, 5, 40, -1, -100])
@IMPLEMENTATIONS
def test_truncated_file_is_an_error(folder: Path, backend: Backend, keep: int, model_impl: str) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        load_model(folder, backend, model_impl=model_impl)


def test_pickled_weights_are_refused(folder: Path, backend: Backend) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="pickle"):
        load_model(folder, backend)


def test_dummy_weights_need_no_file_and_are_the_same_every_time(folder: Path, backend: Backend) -> None:
    (folder / "model.safetensors").unlink()
    first, second = (outputs(folder, backend, load_format="dummy") for _ in range(2))
    assert first == second and len(first[0]) == 6


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoint_runs_in_the_backends_dtype(
    twin: Any, folder: Path, backend: Backend, stored: torch.dtype
) -> None:
    twin.to(stored).save_pretrained(folder)
    assert checkpoint_dtype(folder) == str(stored).removeprefix("torch.")
    assert outputs(folder, backend) == truth(folder)


def test_bfloat16_backend_is_close_to_float32(folder: Path, backend: Backend) -> None:
    half = TorchBackend(torch.device("cpu"), dtype=torch.bfloat16, quantization="none", kv_cache_dtype="auto")
    model = load_model(folder, half)
    assert model.weight_bytes < 0.6 * load_model(folder, backend).weight_bytes
    assert len(paged_rows.generate(model, half, PROMPTS, max_tokens=3)[0]) == 3


def test_config_alone_gives_the_shape(folder: Path, backend: Backend) -> None:
    full = load_model(folder, backend).config
    (folder / "model.safetensors").unlink()
    assert load_config(folder) == full
    assert load_config(folder, model_impl="transformers").attention == full.attention


def test_end_ids_are_the_union_of_both_files(folder: Path, backend: Backend) -> None:
    edit_config(folder, eos_token_id=[3, 4])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert load_model(folder, backend).config.eos_token_ids == {3, 4, 9}


def test_unknown_architecture_is_refused_in_a_sentence(folder: Path, backend: Backend) -> None:
    edit_config(folder, architectures=["NeverSeenForCausalLM"], model_type="never_seen")
    with pytest.raises(UsageError, match="never_seen"):
        load_model(folder, backend)
    with pytest.raises(UsageError, match="not served natively"):
        load_model(folder, backend, model_impl="native")


def test_remote_code_is_never_run(folder: Path, backend: Backend) -> None:
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')")
    edit_config(folder, architectures=["Evil"], model_type="evil", auto_map={"AutoConfig": "modeling_evil.Evil"})
    with pytest.raises(UsageError, match="never run"):
        load_model(folder, backend)


def test_classifier_head_is_refused(folder: Path, backend: Backend) -> None:
    edit_config(folder, architectures=["LlamaForSequenceClassification"])
    with pytest.raises(UsageError, match="not a causal language model"):
        load_model(folder, backend)


@pytest.mark.parametrize("key", ["vocab_size", "num_attention_heads"])
def test_senseless_config_value_is_named(folder: Path, backend: Backend, key: str) -> None:
    edit_config(folder, **{key: "many"})
    with pytest.raises(UsageError, match=key):
        load_model(folder, backend, model_impl="native")


def test_missing_folder_file_is_named(tmp_path: Path, backend: Backend) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        load_model(tmp_path, backend)


class Keeping:
    """A backend that looks at what is alive on the host each time it is handed a weight."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._before = backend, set(storages())
        self.packed: list[int] = []  # bytes of each linear
        self.alive: list[int] = []  # bytes of all tensors made since the load began, then

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        self.packed.append(weight.nbytes)
        self.alive.append(self.num_alive())
        return self._backend.linear(weight, bias)

    def num_alive(self) -> int:
        return sum(size for at, size in storages().items() if at not in self._before)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def storages() -> dict[int, int]:
    """Bytes of every tensor's storage that is alive, by its address."""
    gc.collect()
    tensors = (one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one.device.type == "cpu")
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors if one.numel()}


def test_weights_of_several_shards_are_never_held_twice(folder: Path, backend: Backend) -> None:
    shard(folder)
    watching: Any = Keeping(backend)
    model = load_model(folder, watching)
    small = watching.num_alive() - sum(watching.packed)  # norms, the embedding as it lies in its file, the rotation
    for index, alive in enumerate(watching.alive):
        assert alive <= sum(watching.packed[: index + 1]) + small, "something else is alive while a weight is packed"
    assert len(watching.packed) == 4 * SIZES["num_hidden_layers"] + 1
    assert model.weight_bytes >= sum(watching.packed)


def test_weights_go_to_a_device_without_a_stop_on_the_host(folder: Path) -> None:
    shard(folder)
    watching: Any = Keeping(ShapeBackend(torch.float32))  # a card of its own: what is put there takes no host memory
    model = load_model(folder, watching)
    embedding = 4 * SIZES["vocab_size"] * SIZES["hidden_size"]  # in its file, where the device is no card
    assert max(watching.alive) <= embedding + 1024
    assert model.weight_bytes > sum(watching.packed) > 4 * embedding


def test_a_tensor_that_lies_askew_in_its_file_is_read_all_the_same(folder: Path) -> None:
    """Nothing says that a header's length is a multiple of the values' size."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    path.write_bytes(struct.pack("<Q", length + 3) + data[8 : 8 + length] + b"   " + data[8 + length :])
    files, straight = open_checkpoint(folder), load_file(path)
    for name, tensor in straight.items():
        out = torch.full(tensor.shape, float("nan"), dtype=torch.float64)
        files.take_into(name, out)
        assert torch.equal(out, tensor.double())


def test_dummy_weights_are_drawn_in_the_dtype_and_place_they_are_put(folder: Path) -> None:
    source = RandomTensors()
    narrow, wide = torch.empty(8, 4, dtype=torch.bfloat16), torch.empty(8, 4)
    source.take_into("a.weight", narrow)
    source.take_into("a.weight", wide)
    assert torch.equal(wide.bfloat16(), narrow)
    assert torch.equal(source.take("a.weight", (8, 4), None), wide)
    source.take_into("a.norm.weight", wide)
    assert torch.equal(wide, torch.ones(8, 4))
