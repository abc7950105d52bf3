"""What a model folder says: tokenizer, chat template wherever it is, end ids, sampling defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from offgen.errors import UsageError
from offgen.text import eos_ids, generation_defaults, load_tokenizer

Folder = Callable[..., Path]


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_ids_are_those_of_transformers(make_folder: Folder) -> None:
    folder = make_folder("byte_level", adds_bos=True)
    oracle, tokenizer = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    texts = ["hi", "", " é 😀\n", "<s>x</s>"]
    expected = [oracle(text)["input_ids"] for text in texts]
    assert [tokenizer.encode(text, add_special_tokens=True) for text in texts] == expected
    assert tokenizer.encode_batch(texts, add_special_tokens=True) == expected
    for ids in expected:
        for skip in (True, False):
            whole = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == whole


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt2", None])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_file_taken_as_it_is_gives_what_transformers_gives(
    make_folder: Folder, model_type: str | None, adds_bos: bool
) -> None:
    """Only some folders are read without transformers; whichever they are, nothing differs."""
    folder = make_folder(adds_bos=adds_bos, unk_token="<unk>", pad_token={"content": "</s>", "__type": "AddedToken"})
    if model_type == "qwen3":  # as transformers saves it
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    if model_type is not None:
        write(folder / "config.json", {"model_type": model_type, "vocab_size": 420})
    oracle, tokenizer = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (oracle.bos_token_id, {oracle.eos_token_id})
    assert tokenizer.vocab_size == len(oracle)
    assert tokenizer.template_variables == oracle.special_tokens_map
    for text in ["<s>the quick 2024 😀</s>", " a <|im_end|> b", ""]:
        assert tokenizer.encode(text, add_special_tokens=True) == oracle(text)["input_ids"]


def test_a_plain_folder_is_read_without_transformers(make_folder: Folder) -> None:
    folder = make_folder()
    write(folder / "config.json", {"model_type": "llama"})
    code = f"""
import sys
from pathlib import Path
from offgen.text import load_tokenizer
load_tokenizer(Path({str(folder)!r}))
assert not {{"torch", "transformers"}} & sys.modules.keys()
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_saved_truncation_and_padding_are_not_applied(make_folder: Folder) -> None:
    folder = make_folder()
    saved = json.loads((folder / "tokenizer.json").read_text())
    saved["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    saved["padding"] = {
        "strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<unk>",
    }  # fmt: skip
    write(folder / "tokenizer.json", saved)
    tokenizer = load_tokenizer(folder)
    text = "the quick brown fox"
    assert (
        tokenizer.decode(tokenizer.encode_batch([text, "a"], add_special_tokens=True)[0], skip_special_tokens=False)
        == text
    )


def test_ids_that_the_tokenizer_has_not_decode_to_nothing(make_folder: Folder) -> None:
    tokenizer = load_tokenizer(make_folder())
    ids = tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.decode([*ids, tokenizer.vocab_size + 7, *ids], skip_special_tokens=True) == "abab"


def test_a_chat_template_is_found_wherever_it_is(make_folder: Folder) -> None:
    folder = make_folder()
    assert load_tokenizer(folder).chat_template is None
    write(folder / "chat_template.json", {"chat_template": "of json"})
    assert load_tokenizer(folder).chat_template == "of json"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "of list"}, {"name": "tool_use", "template": "t"}]
    write(folder / "tokenizer_config.json", {**config, "chat_template": named})
    assert load_tokenizer(folder).chat_template == "of list"
    write(folder / "tokenizer_config.json", {**config, "chat_template": "of config"})
    assert load_tokenizer(folder).chat_template == "of config"
    write(folder / "chat_template.jinja", "of jinja")
    assert load_tokenizer(folder).chat_template == "of jinja"
    write(folder / "additional_chat_templates" / "rag.jinja", "of rag")
    assert load_tokenizer(folder).chat_template == "of jinja"


def test_named_templates_without_a_default_are_refused(make_folder: Folder) -> None:
    folder = make_folder(chat_template=[{"name": "rag", "template": "x"}])
    with pytest.raises(UsageError, match="rag"):
        load_tokenizer(folder)


def test_a_folder_without_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=str(folder)):
            load_tokenizer(folder)
    write(tmp_path / "tokenizer.json", "{")
    with pytest.raises(UsageError):
        load_tokenizer(tmp_path)


def test_end_ids_are_the_union_of_all_that_name_some(make_folder: Folder) -> None:
    folder = make_folder()
    tokenizer = load_tokenizer(folder)
    assert eos_ids(folder, tokenizer) == {2}
    write(folder / "config.json", {"eos_token_id": 7, "text_config": {"eos_token_id": [8]}})
    write(folder / "generation_config.json", {"eos_token_id": [2, 9]})
    assert eos_ids(folder, tokenizer) == {2, 7, 8, 9}
    write(folder / "config.json", {"eos_token_id": None})
    assert eos_ids(folder, tokenizer) == {2, 9}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"temperature": 0.6, "top_k": 20}, {}),
        ({"do_sample": False, "temperature": 0.6}, {}),
        ({"do_sample": "yes", "temperature": 0.6}, {}),
        ({"do_sample": True}, {"temperature": 1.0}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": None, "max_length": 20},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.9},
        ),
        ({"repetition_penalty": 1.1, "max_new_tokens": 5}, {"repetition_penalty": 1.1}),
    ],
)
def test_a_model_is_sampled_only_if_it_says_so(tmp_path: Path, config: Any, expected: dict[str, Any]) -> None:
    if config is not None:
        write(tmp_path / "generation_config.json", config)
    assert generation_defaults(tmp_path, "auto") == expected
    assert generation_defaults(tmp_path, "none") == {}


def test_a_broken_generation_config_is_a_usage_error(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"do_sample": true, "top_p": 7}'):
        write(tmp_path / "generation_config.json", content)
        with pytest.raises(UsageError, match="generation_config"):
            generation_defaults(tmp_path, "auto")
