"""The tokenizer inside a GGUF file to tokenizer.json and tokenizer_config.json. Knows vocabularies.

A byte-pair vocabulary without the split it was learned with gives other tokens than the model was trained on, so an
unknown pre-tokenizer name is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offgen.checkpoints.gguf_splits import ADDS_BOS, IGNORES_MERGES, NORMALIZES_NFC, split_of

if TYPE_CHECKING:
    from offgen.checkpoints.gguf_file import GGUFFile

CONTROL, USER_DEFINED = 3, 4  # token types
SPACE = "\u2581"


class UnknownTokenizerError(Exception):
    """The file's tokenizer cannot be rebuilt exactly; the message says why."""


def write_tokenizer(file: GGUFFile, folder: Path) -> None:
    """Raises UnknownTokenizerError."""
    kind = file.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(file)
    elif kind == "llama":
        tokenizer = _sentencepiece(file)
    else:
        raise UnknownTokenizerError(f"{file.path}: tokenizer kind `{kind}` is not supported (supported: gpt2, llama)")
    _add_tokens(tokenizer, file)
    _add_ends(tokenizer, file, adds_bos=_adds_bos(file, kind))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.dumps(_tokenizer_config(file), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")


def _byte_level(file: GGUFFile) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    name = file.get("tokenizer.ggml.pre", "default")
    split = split_of(name)
    if split is None:
        raise UnknownTokenizerError(
            f"{file.path}: pre-tokenizer `{name}` is unknown, and guessing it gives wrong tokens"
        )
    tokens = file.require("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.require("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=name in IGNORES_MERGES))
    if name in NORMALIZES_NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GGUFFile) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    if file.get("tokenizer.ggml.remove_extra_whitespaces", False):
        raise UnknownTokenizerError(f"{file.path}: a tokenizer that removes extra whitespace is not supported")
    tokens = list(file.require("tokenizer.ggml.tokens"))
    scores = list(file.require("tokenizer.ggml.scores"))
    if file.architecture.startswith("gemma"):
        # runs of spaces are stored as spaces, and the order of tokens, not their scores, is the order of merges
        tokens = [SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
        scores = [-index for index in range(len(tokens))]
    unknown = file.get("tokenizer.ggml.unknown_token_id", 0)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, _merges_of(tokens, scores), unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    )
    has_prefix = bool(file.get("tokenizer.ggml.add_space_prefix", True))
    prefix = [normalizers.Prepend(SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges_of(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best token first: sentencepiece's choices as a list."""
    ids = {token: index for index, token in enumerate(tokens)}
    found = []
    for index, token in enumerate(tokens):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(ids[left], ids[right], left, right) for left, right in pairs if left in ids and right in ids]
        found += [(-scores[index], order, left, right) for order, (_, _, left, right) in enumerate(sorted(known))]
    found.sort(key=lambda merge: merge[0])  # stable: ties keep the order of the vocabulary
    return [(left, right) for _, _, left, right in found]


def _add_tokens(tokenizer: Any, file: GGUFFile) -> None:
    """Control tokens are special; user-defined ones stay whole in a text, too, but are printed."""
    from tokenizers import AddedToken

    types = file.get("tokenizer.ggml.token_type") or []
    tokens = file.require("tokenizer.ggml.tokens")
    for index, kind in enumerate(types):
        if kind not in (CONTROL, USER_DEFINED) or tokenizer.token_to_id(tokens[index]) != index:
            continue  # of two equal spellings the model only ever sees one
        token = AddedToken(tokens[index], special=kind == CONTROL, normalized=False)
        if kind == CONTROL:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])


def _adds_bos(file: GGUFFile, kind: str) -> bool:
    by_name = kind == "llama" or file.get("tokenizer.ggml.pre", "default") in ADDS_BOS
    return bool(file.get("tokenizer.ggml.add_bos_token", by_name))


def _add_ends(tokenizer: Any, file: GGUFFile, *, adds_bos: bool) -> None:
    from tokenizers import processors

    bos, eos = _token(file, "bos"), _token(file, "eos")
    has_bos = adds_bos and bos is not None
    has_eos = bool(file.get("tokenizer.ggml.add_eos_token", False)) and eos is not None
    if not has_bos and not has_eos:
        return
    special = [pair for pair, wanted in ((bos, has_bos), (eos, has_eos)) if wanted]
    first = [f"{bos[0]}:0"] if has_bos and bos else []
    last = [f"{eos[0]}:0"] if has_eos and eos else []
    second = [part.replace(":0", ":1") for part in first], [part.replace(":0", ":1") for part in last]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A:0", *last],
        pair=[*first, "$A:0", *last, *second[0], "$B:1", *second[1]],
        special_tokens=special,
    )


def _token(file: GGUFFile, name: str) -> tuple[str, int] | None:
    index = file.get(f"tokenizer.ggml.{name}_token_id")
    return None if index is None else (file.require("tokenizer.ggml.tokens")[index], int(index))


def _tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(file.of_architecture("context_length", 0)) or None,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = _token(file, key)
        if token is not None:
            config[f"{name}_token"] = token[0]
    template = file.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    return config
