"""The model's tokenizer: transformers loads it, its fast backend does the work.

Knows ids and text; knows no rows and no sampling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from offgen.errors import UsageError

# Decoders for which a token's text depends on nearby tokens only, so that a window stands for a whole prompt.
_LOCAL_DECODERS = frozenset({"ByteLevel", "Metaspace", "ByteFallback", "Fuse", "Replace", "Strip"})


class Tokenizer:
    """Encodes, decodes, and says which ids are special.

    bos_id         None if there is none
    eos_ids        the tokenizer's own end id; `text.eos_ids` adds those of the model's configuration
    vocab_size     the number of ids it knows, added tokens included; the model may have more rows, or fewer
    chat_template  the source of the default chat template, or None
    """

    def __init__(self, loaded: Any, chat_template: str | None) -> None:
        self._loaded = loaded
        self._backend = loaded.backend_tokenizer
        # A saved tokenizer may carry the truncation and padding of its training.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.chat_template = chat_template
        self.bos_id: int | None = loaded.bos_token_id
        self.eos_ids = frozenset() if loaded.eos_token_id is None else frozenset({int(loaded.eos_token_id)})
        self.vocab_size = len(loaded)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of one text. add_special_tokens: let the tokenizer put its BOS (or what else it adds)."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """The same for many texts at once, on several threads."""
        return [one.ids for one in self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of ids, spaces as the tokens have them. Ids it does not know have no text."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    @cached_property
    def special_texts(self) -> Mapping[int, str]:
        """Special tokens by id: those that `skip_special_tokens` leaves out."""
        added = self._backend.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items() if token.special}

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids of single bytes that decode together with their neighbours (byte fallback); empty if there are none."""
        if "ByteFallback" not in self._decoder_types:
            return frozenset()
        found = (self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(token_id for token_id in found if token_id is not None)

    @cached_property
    def is_local(self) -> bool:
        """True if the text of a token depends on nearby tokens only."""
        return bool(self._decoder_types) and self._decoder_types <= _LOCAL_DECODERS

    @cached_property
    def _decoder_types(self) -> frozenset[str]:
        decoder = json.loads(self._backend.to_str()).get("decoder")
        parts = [] if decoder is None else decoder.get("decoders", [decoder])
        return frozenset(str(part["type"]) for part in parts)

    @cached_property
    def template_variables(self) -> Mapping[str, Any]:
        """Names that a chat template may use: bos_token, eos_token and the like."""
        return {name: _plain(value) for name, value in self._loaded.special_tokens_map.items()}


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder; nothing is fetched, no code of the folder is run.

    Raises UsageError if there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder to take a tokenizer from")
    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever a broken file makes it trip over
        raise UsageError(
            f"{folder}: the tokenizer cannot be loaded: {_first_line(error)}",
            hint="the folder needs tokenizer.json (or --tokenizer names another folder or hub id)",
        ) from error
    if getattr(loaded, "backend_tokenizer", None) is None:
        raise UsageError(
            f"{folder}: {type(loaded).__name__} has no fast tokenizer", hint="add a tokenizer.json to the folder"
        )
    return Tokenizer(loaded, _chat_template(loaded, folder))


def _chat_template(loaded: Any, folder: Path) -> str | None:
    """transformers looks into tokenizer_config.json, chat_template.jinja and additional_chat_templates/; a processor's
    chat_template.json is the one place it leaves out."""
    found = loaded.chat_template
    if found is None and (folder / "chat_template.json").is_file():
        found = json.loads((folder / "chat_template.json").read_text(encoding="utf-8")).get("chat_template")
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


def _plain(value: Any) -> Any:
    return [str(one) for one in value] if isinstance(value, list | tuple) else str(value)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
