"""Hugging Face datasets: folders made by `save_to_disk` (read as the Arrow files they are), and `hf://datasets/ORG/NAME`
or plain dataset folders through the `datasets` library, streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from offgen.errors import UsageError
from offgen.readers.source import MAX_BATCH_ROWS, Piece, first_line, opening, reading, refuse_duplicate_columns, take
from offgen.readers.splits import Wanted

_HUB = re.compile(r"hf://datasets/([^/@]+(?:/[^/@]+)?)(?:@(.+))?/?")


def hub_name(path: str) -> tuple[str, str | None] | None:
    """(ORG/NAME, revision) of a path that names a dataset on the hub as a whole, else None."""
    match = _HUB.fullmatch(path.rstrip("/"))
    return (match[1], match[2]) if match else None


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` of a Dataset or a DatasetDict made this folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_files(folder: Path, split: str | None) -> list[Path]:
    """The Arrow files of a saved dataset, in order; of a DatasetDict those of one split."""
    with opening(str(folder), "a saved dataset"):
        if (folder / "dataset_dict.json").is_file():
            names = json.loads((folder / "dataset_dict.json").read_text("utf-8"))["splits"]
            folder = folder / choose_split(str(folder), names, split)
        elif split is not None:
            own = _own_split(folder)
            if own is not None and own != split:
                raise UsageError(f"{folder}: holds the split `{own}`, not `{split}`")
        state = json.loads((folder / "state.json").read_text("utf-8"))
        files = [folder / entry["filename"] for entry in state["_data_files"]]
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: this file of the dataset is missing")
    return files


def _own_split(folder: Path) -> str | None:
    state = json.loads((folder / "state.json").read_text("utf-8"))
    own = state.get("_split")
    return own if isinstance(own, str) else None


def choose_split(name: str, splits: list[str], split: str | None) -> str:
    """The split asked for, or the only one there is. UsageError otherwise."""
    if split in splits or (split is None and len(splits) == 1):
        return split or splits[0]
    wrong = "has several splits" if split is None else f"has no split `{split}`"
    raise UsageError(f"{name}: {wrong}: {', '.join(splits)}", hint=f"--split {splits[0] if splits else 'train'}")


class HubSource:
    """Rows of one split of a dataset that the `datasets` library knows, on the hub or in a folder."""

    def __init__(self, name: str, dataset: str, *, revision: str | None, subset: str | None, split: str | None) -> None:
        self.name = name
        self._identity = {"dataset": dataset, "revision": revision, "subset": subset}
        with opening(name, "a dataset"):
            self._dataset = _load(name, dataset, revision=revision, subset=subset, split=split)
        info = getattr(self._dataset, "info", None)
        self._split = str(getattr(self._dataset, "split", split))
        splits = getattr(info, "splits", None) or {}
        known = getattr(splits.get(self._split), "num_examples", None) if hasattr(splits, "get") else None
        length = getattr(self._dataset, "num_rows", known)
        self.num_rows: int | None = length if isinstance(length, int) and length > 0 else None
        features = getattr(self._dataset, "features", None)
        if features is not None:
            self.schema = features.arrow_schema.remove_metadata()
        else:
            with opening(name, "a dataset"):
                first = next(self._batches(), None)
            self.schema = pa.schema([]) if first is None else first.schema
        refuse_duplicate_columns(name, self.schema.names)

    def count_rows(self) -> int:
        if self.num_rows is None:
            with reading(self.name):
                self.num_rows = sum(batch.num_rows for batch in self._batches())
        return self.num_rows

    def fingerprint(self) -> dict[str, Any]:
        """What the hub or the library says of the content: a commit, checksums, or the library's own fingerprint."""
        info = getattr(self._dataset, "info", None)
        sums = getattr(info, "download_checksums", None) or {}
        return {
            **self._identity,
            "split": self._split,
            "rows": self.num_rows,
            "columns": [f"{field.name}: {field.type}" for field in self.schema],
            "checksums": sorted(str(value.get("checksum")) for value in sums.values() if isinstance(value, dict)),
        }

    def pieces(self, first_row_id: int, wanted: Wanted, known: pa.Schema) -> Generator[Piece, None, int]:
        passed = 0
        with reading(self.name):
            for batch in self._batches():
                piece = take(batch, first_row_id + passed, passed, wanted)
                if piece is not None:
                    yield piece
                passed += batch.num_rows
                if wanted.is_past(first_row_id + passed):
                    break
        return passed

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for table in self._dataset.with_format("arrow").iter(batch_size=MAX_BATCH_ROWS):
            yield from table.replace_schema_metadata(None).to_batches(max_chunksize=MAX_BATCH_ROWS)


def _load(name: str, dataset: str, *, revision: str | None, subset: str | None, split: str | None) -> Any:
    """The split, streamed; from the library's cache if the hub is out of reach."""
    try:
        import datasets
    except ImportError:
        raise UsageError(f"{name}: the package `datasets` is not installed", hint="pip install datasets") from None
    is_offline = bool(getattr(datasets.config, "HF_HUB_OFFLINE", False)) and not Path(dataset).exists()
    last: Exception | None = None
    for is_streaming in (False,) if is_offline else (True, False):
        try:
            found = datasets.load_dataset(dataset, subset, revision=revision, streaming=is_streaming)
        except ValueError as problem:  # no such subset, or one is needed: says which there are
            raise UsageError(f"{name}: {first_line(problem)}", hint="--subset NAME") from problem
        except Exception as problem:  # hub errors come from many packages: requests, httpx, huggingface_hub
            last = problem
            continue
        return found[choose_split(name, list(found), split)]
    assert last is not None
    raise UsageError(f"{name}: cannot be loaded: {type(last).__name__}: {first_line(last)}") from last
