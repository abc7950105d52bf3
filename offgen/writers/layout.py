"""Where an output and its state lie. Paths only; touches nothing on disk.

    folder      OUT/part-00000.parquet …   OUT/_SUCCESS   OUT/_offgen/
    one file    OUT.parquet                               OUT.parquet.offgen/

The state folder holds run.json, report.json, lock, commits.log, journal/, and parts/ (shards as Arrow, where the
visible file cannot give its rows back with their types, or is not there yet).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from offgen.errors import UsageError
from offgen.writers.options import OutputOptions

FILE_SUFFIXES = {
    ".parquet": ("parquet", ""),
    ".arrow": ("arrow", ""),
    ".jsonl": ("jsonl", ""),
    ".jsonl.gz": ("jsonl", "gz"),
    ".jsonl.zst": ("jsonl", "zst"),
}
_FOLDER_SUFFIX = {"parquet": ".parquet", "arrow": ".arrow", "jsonl": ".jsonl", "openai-batch": ".jsonl"}
_READ_ONLY_SUFFIX = re.compile(
    r"\.(csv|json|ndjson|feather|txt|gguf|(jsonl|csv|json|ndjson|parquet)\.(bz2|xz|gz|zst))$", re.I
)
_PART = re.compile(r"part-(\d{5,})\.(parquet|arrow|jsonl)")
_JOURNAL = re.compile(r"split-(\d{5,})-(\d+)\.journal")
STATE_FOLDER = "_offgen"
STATE_SUFFIX = ".offgen"
SUCCESS = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one job's output.

    target         the folder, or the file
    format         of the visible files
    compression    of a JSONL file: '', gz or zst
    """

    target: Path
    is_file: bool
    format: str
    compression: str = ""

    @property
    def state_dir(self) -> Path:
        if self.is_file:
            return self.target.with_name(self.target.name + STATE_SUFFIX)
        return self.target / STATE_FOLDER

    @property
    def keeps_parts(self) -> bool:
        """Whether shards are kept as Arrow in the state folder until the job is done."""
        return self.is_file or self.format in {"jsonl", "openai-batch"}

    @property
    def run_path(self) -> Path:
        return self.state_dir / "run.json"

    @property
    def report_path(self) -> Path:
        return self.state_dir / "report.json"

    @property
    def commits_path(self) -> Path:
        return self.state_dir / "commits.log"

    @property
    def lock_path(self) -> Path:
        return self.state_dir / "lock"

    @property
    def journal_dir(self) -> Path:
        return self.state_dir / "journal"

    @property
    def parts_dir(self) -> Path:
        return self.state_dir / "parts"

    @property
    def success_path(self) -> Path:
        return self.target / SUCCESS

    def journal_path(self, split: int, generation: int) -> Path:
        return self.journal_dir / f"split-{split:05d}-{generation}.journal"

    def visible_part(self, split: int) -> Path:
        """A folder's file of the split."""
        return self.target / f"part-{split:05d}{_FOLDER_SUFFIX[self.format]}"

    def kept_part(self, split: int) -> Path:
        return self.parts_dir / f"part-{split:05d}.arrow"

    def typed_part(self, split: int) -> Path:
        """The file that gives the split's rows back with their types."""
        return self.kept_part(split) if self.keeps_parts else self.visible_part(split)

    def journals(self) -> dict[int, dict[int, Path]]:
        """The journals there are: split -> generation -> path."""
        found: dict[int, dict[int, Path]] = {}
        for path in _listing(self.journal_dir):
            if match := _JOURNAL.fullmatch(path.name):
                found.setdefault(int(match[1]), {})[int(match[2])] = path
        return found

    def parts(self, folder: Path) -> dict[int, Path]:
        """The shards that lie in `folder`: split -> path, whatever their format."""
        return {int(match[1]): path for path in _listing(folder) if (match := _PART.fullmatch(path.name))}

    def temporaries(self) -> list[Path]:
        """What a job that was killed left half-written."""
        folders = [self.state_dir, self.journal_dir, self.parts_dir, *([] if self.is_file else [self.target])]
        return [path for folder in folders for path in _listing(folder) if is_temporary(path.name)]


def _listing(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def is_part(name: str) -> bool:
    return _PART.fullmatch(name) is not None


def layout_of(output: str, options: OutputOptions) -> Layout:
    """Where `output` lies. Raises UsageError for a name and a format that do not go together."""
    if "://" in output:
        raise UsageError(f"{output}: remote outputs are not available yet", hint="write to a local folder and copy it")
    path = Path(output)
    try:
        path.exists()
    except (OSError, ValueError) as problem:  # a name no file can have
        raise UsageError(f"{output}: {problem}", hint="give another output") from problem
    suffix = "" if output.endswith("/") else _suffix_of(path.name)
    if suffix:
        return _file_layout(path, suffix, options)
    if not output.endswith("/") and (match := _READ_ONLY_SUFFIX.search(path.name)):
        known = " ".join(FILE_SUFFIXES)
        raise UsageError(
            f"{output}: {match[0]} is not written", hint=f"a file ends in one of {known}; a folder may end in /"
        )
    if path.exists() and not path.is_dir():
        raise UsageError(f"{output}: is a file, not a folder", hint=f"a file ends in one of {' '.join(FILE_SUFFIXES)}")
    selection = options.selection
    if options.is_sharded or selection.num_shards > 1:
        path = path / f"shard-{selection.shard_index}-of-{selection.num_shards}"
    return Layout(path, is_file=False, format=options.format or "parquet")


def _suffix_of(name: str) -> str:
    lower = name.lower()
    found = [suffix for suffix in FILE_SUFFIXES if lower.endswith(suffix) and lower != suffix]
    return max(found, key=len, default="")


def _file_layout(path: Path, suffix: str, options: OutputOptions) -> Layout:
    file_format, compression = FILE_SUFFIXES[suffix]
    wanted = options.format or file_format
    if wanted != file_format and not (wanted == "openai-batch" and file_format == "jsonl"):
        raise UsageError(f"{path}: a {suffix} file is not {wanted}", hint="leave --output-format out, or name a folder")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder", hint=f"{path}/ writes into it")
    return Layout(path, is_file=True, format=wanted, compression=compression)
