"""A checkpoint on disk, and what makes it the same one in another run. Knows files; knows no model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
)
SAMPLE_BYTES = 64 * 1024
NUM_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a model lies.

    name               what the user called it
    folder             Hugging Face layout: config.json, *.safetensors
    tokenizer_folder   the same, unless a tokenizer was given separately
    revision           the commit of a hub snapshot, None for everything else
    """

    name: str
    folder: Path
    tokenizer_folder: Path
    revision: str | None = None

    def fingerprint(self) -> dict[str, Any]:
        """What output depends on: configuration, weights, tokenizer. The same for a copy of the folder elsewhere.

        Weight files count by size, head and samples of their content: reading all of a large model would take minutes.
        """
        return {
            "config": _hash_whole(self.folder / "config.json"),
            "generation_config": _hash_whole(self.folder / "generation_config.json"),
            "weights": {path.name: hash_sampled(path) for path in weight_files(self.folder)},
            "tokenizer": {
                name: _hash_whole(self.tokenizer_folder / name)
                for name in TOKENIZER_FILES
                if (self.tokenizer_folder / name).is_file()
            },
        }

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight files on disk."""
        return sum(path.stat().st_size for path in weight_files(self.folder))


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def hash_sampled(path: Path, *, whole_up_to: int = 4 * 1024 * 1024) -> str:
    """A digest of size and content: all of a small file; of a large one both ends and evenly spread samples."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= whole_up_to:
            digest.update(file.read())
            return digest.hexdigest()
        digest.update(file.read(1024 * 1024))
        for index in range(NUM_SAMPLES):
            file.seek(size * index // NUM_SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
        file.seek(size - 1024 * 1024)
        digest.update(file.read())
    return digest.hexdigest()


def _hash_whole(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
