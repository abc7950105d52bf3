"""The model's tokenizer: text to ids and back.

Knows ids and text; knows no files, no rows and no sampling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from offgen.text.tokenizer_file import OpenedTokenizer, open_tokenizer

# Decoders for which a token's text depends on nearby tokens only, so that a window stands for a whole prompt.
_LOCAL_DECODERS = frozenset({"ByteLevel", "Metaspace", "ByteFallback", "Fuse", "Replace", "Strip"})


class Tokenizer:
    """Encodes, decodes, and says which ids are special.

    bos_id         None if there is none
    eos_ids        the tokenizer's own end id; `text.eos_ids` adds those of the model's configuration
    vocab_size     the number of ids it knows, added tokens included; the model may have more rows, or fewer
    chat_template  the source of the default chat template, or None
    template_variables  names that a chat template may use: bos_token, eos_token and the like
    """

    def __init__(self, opened: OpenedTokenizer) -> None:
        self._backend = opened.backend
        # A saved tokenizer may carry the truncation and padding of its training.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.chat_template = opened.chat_template
        self.template_variables = opened.special
        self.bos_id = self._special_id("bos_token")
        eos_id = self._special_id("eos_token")
        self.eos_ids: frozenset[int] = frozenset() if eos_id is None else frozenset({eos_id})
        self.vocab_size: int = self._backend.get_vocab_size()

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

    def _special_id(self, name: str) -> int | None:
        text = self.template_variables.get(name)
        found: int | None = None if text is None else self._backend.token_to_id(text)
        return found


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder; nothing is fetched, no code of the folder is run.

    Raises UsageError if there is none, or it cannot be read.
    """
    return Tokenizer(open_tokenizer(folder))
