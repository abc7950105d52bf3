"""What DST is: its format by suffix or by name, and whether it may be written. Knows no row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offgen.errors import UsageError

_SUFFIXES = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
}
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".xz")
_TEXT = ("jsonl", "csv")

# what rows are made into before they are written, and the format that fits when DST does not say
SHAPES = {"openai-batch": "jsonl", "openai-requests": "jsonl", "openai-results": "jsonl", "messages": "jsonl"}
FORMATS = ("parquet", "jsonl", "arrow", "csv", "hf-dataset", *SHAPES)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to, as which file format (`hf-dataset` is a folder), in which shape (empty: rows as they are)."""

    path: Path
    format: str
    compression: str = ""
    shape: str = ""

    @property
    def is_stdout(self) -> bool:
        return str(self.path) == "-"


def find_target(dst: str, output_format: str | None, *, overwrite: bool) -> Target:
    """DST as a Target. UsageError if its format is not clear, or something is there that may not be replaced."""
    if output_format is not None and output_format not in FORMATS:
        raise UsageError(f"unknown output format `{output_format}`", hint="one of " + ", ".join(FORMATS))
    if "://" in dst:
        raise UsageError(f"{dst}: convert writes local files", hint="write a local file and copy it")
    shape = output_format if output_format in SHAPES else ""
    suffix_format, compression = _format_of(dst)
    if dst == "-":
        suffix_format = "jsonl"
    chosen = (output_format if not shape else None) or suffix_format or (SHAPES[shape] if shape else "hf-dataset")
    if chosen == "hf-dataset" and suffix_format:
        raise UsageError(f"{dst}: a dataset folder has no suffix", hint=f"{dst.split('.')[0]}/")
    if chosen != "hf-dataset" and (dst.endswith("/") or Path(dst).is_dir()):
        raise UsageError(f"{dst}: name a file for {chosen}", hint=f"{dst.rstrip('/')}/data.{chosen}")
    if dst == "-" and chosen != "jsonl":
        raise UsageError(f"{chosen} does not go to stdout, only JSONL does", hint="name a file")
    if compression and chosen not in _TEXT:
        raise UsageError(f"{dst}: {chosen} is not compressed as a whole", hint=f"leave {compression} away")
    target = Target(Path(dst), chosen, compression, shape or "")
    if not target.is_stdout:
        _check_free(target, overwrite)
    return target


def _format_of(dst: str) -> tuple[str, str]:
    lower = dst.lower()
    compression = next((suffix for suffix in _COMPRESSIONS if lower.endswith(suffix)), "")
    stem = lower.removesuffix(compression)
    kind = next((kind for suffix, kind in _SUFFIXES.items() if stem.endswith(suffix)), "")
    return kind, compression


def _check_free(target: Target, overwrite: bool) -> None:
    path = target.path
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder", hint=f"mkdir -p {path.parent}")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise UsageError(f"{path}: exists already", hint="--overwrite")
    if path.is_dir() and not (path / "state.json").is_file():
        raise UsageError(f"{path}: this folder is not a saved dataset and will not be replaced", hint="remove it first")
