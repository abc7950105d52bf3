"""Opens a model folder's tokenizer: a `tokenizers` backend, and the special tokens by their names.

transformers decides how tokenizer files are to be read, and often rebuilds a tokenizer by its class. Where it would
take tokenizer.json as it is, this does the same without it: importing transformers and asking it takes two seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offgen.errors import UsageError

# For these model types, these classes mean the file as it is (transformers 5: AutoTokenizer).
_PLAIN_MODEL_TYPES = frozenset({"llama", "qwen3"})
_PLAIN_CLASSES = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})
# Settings that change the backend after it is read.
_CHANGING = frozenset(
    {
        "auto_map",
        "added_tokens_decoder",
        "add_bos_token",
        "add_eos_token",
        "add_prefix_space",
        "additional_special_tokens",
        "extra_special_tokens",
        "split_special_tokens",
        "fix_mistral_regex",
    }
)
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LARGE_VOCABULARY = 100_000  # beyond it transformers looks for a known fault of Mistral's


@dataclass(frozen=True, slots=True)
class OpenedTokenizer:
    """backend: a tokenizers.Tokenizer; special: its named special tokens, as chat templates see them."""

    backend: Any
    special: Mapping[str, Any]
    chat_template: str | None


def open_tokenizer(folder: Path) -> OpenedTokenizer:
    """Nothing is fetched, and no code of the folder is run. Raises UsageError if there is no tokenizer to read."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder to take a tokenizer from")
    try:
        config = _read(folder / "tokenizer_config.json")
        opened = _open_plain(folder, config) or _open_by_transformers(folder)
        return OpenedTokenizer(*opened, _chat_template(folder, config))
    except UsageError:
        raise
    except Exception as error:  # transformers raises whatever a broken file makes it trip over
        raise UsageError(
            f"{folder}: the tokenizer cannot be loaded: {(str(error).strip() or type(error).__name__).splitlines()[0]}",
            hint="the folder needs tokenizer.json (or --tokenizer names another folder or hub id)",
        ) from error


def _open_plain(folder: Path, config: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]] | None:
    """tokenizer.json as it is, or None where transformers may make something else of it."""
    file = folder / "tokenizer.json"
    is_plain = (
        config.get("tokenizer_class") in _PLAIN_CLASSES
        and _read(folder / "config.json").get("model_type") in _PLAIN_MODEL_TYPES
        and _CHANGING.isdisjoint(config)
        and config.get("backend", "tokenizers") == "tokenizers"
        and file.is_file()
        and not (folder / "special_tokens_map.json").exists()
        and not (folder / "added_tokens.json").exists()
    )
    if not is_plain:
        return None
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(file))
    special = {name: _content(config[name]) for name in _SPECIAL_NAMES if config.get(name) is not None}
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    if not known.issuperset(special.values()) or backend.get_vocab_size() > _LARGE_VOCABULARY:
        return None
    return backend, special


def _open_by_transformers(folder: Path) -> tuple[Any, Mapping[str, Any]]:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(
            f"{folder}: {type(loaded).__name__} has no fast tokenizer", hint="add a tokenizer.json to the folder"
        )
    return backend, {name: _content(value) for name, value in loaded.special_tokens_map.items()}


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The default template of the places that transformers knows, and of a processor's chat_template.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if found is None:
        found = _read(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}
    if isinstance(found, dict):
        if "default" not in found:
            raise UsageError(
                f"{folder}: none of its chat templates ({', '.join(sorted(found))}) is the default one",
                hint="put the one to use into chat_template.jinja",
            )
        found = found["default"]
    return None if found is None else str(found)


def _content(value: Any) -> Any:
    """A special token as text: a plain one, one with its flags, or a list of them."""
    if isinstance(value, list | tuple):
        return [_content(one) for one in value]
    return str(value["content"]) if isinstance(value, Mapping) else str(value)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content
