"""A folder that `datasets.load_from_disk` reads: Arrow streams, state.json, dataset_info.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from offgen.convert.sinks import Gathered
from offgen.errors import UsageError

_SHARD_BYTES = 500 << 20  # as save_to_disk does


class HfFolder:
    """Writes the files of one dataset into an empty folder. `sink` takes the rows."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._features = _features(schema)
        self._schema = self._features.arrow_schema
        self._files: list[Path] = []
        self._writer: Any = None
        self._bytes = 0
        self.sink = Gathered(self._write_group, self._finish, schema)

    def _write_group(self, batch: pa.RecordBatch) -> None:
        if self._writer is None or self._bytes >= _SHARD_BYTES:
            self._next_file()
        self._writer.write_table(pa.Table.from_batches([batch]).cast(self._schema))
        self._bytes += batch.nbytes

    def _next_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._files.append(self._folder / f"{len(self._files)}.arrow")
        self._writer = pa.ipc.new_stream(str(self._files[-1]), self._schema)
        self._bytes = 0

    def _finish(self) -> None:
        if self._writer is None:
            self._next_file()
        self._writer.close()
        names = [f"data-{i:05d}-of-{len(self._files):05d}.arrow" for i in range(len(self._files))]
        for file, name in zip(self._files, names, strict=True):
            file.rename(self._folder / name)
        state: dict[str, Any] = {
            "_data_files": [{"filename": name} for name in names],
            "_fingerprint": "offgen-convert",
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        info = {"citation": "", "description": "", "features": _plain(self._features), "homepage": "", "license": ""}
        (self._folder / "state.json").write_text(json.dumps(state, indent=2), "utf-8")
        (self._folder / "dataset_info.json").write_text(json.dumps(info, indent=2), "utf-8")


def _features(schema: pa.Schema) -> Any:
    try:
        import datasets
    except ImportError:
        raise UsageError("a dataset folder needs the package `datasets`", hint="pip install datasets") from None
    for field in schema:
        try:
            datasets.Features.from_arrow_schema(pa.schema([pa.field(field.name, _known_type(field.type))]))
        except (ValueError, TypeError, NotImplementedError) as problem:
            raise UsageError(f"column `{field.name}`: a dataset folder cannot hold {field.type}") from problem
    return datasets.Features.from_arrow_schema(pa.schema([pa.field(f.name, _known_type(f.type)) for f in schema]))


def _known_type(kind: pa.DataType) -> pa.DataType:
    """The nearest type that `datasets` has a name for."""
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return _known_type(kind.value_type)
    if pa.types.is_list_view(kind) or pa.types.is_list(kind):
        return pa.list_(_known_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _known_type(field.type)) for field in kind])
    return kind


def _plain(features: Any) -> Any:
    """The features as JSON, in the library's own words."""
    to_dict = getattr(features, "to_dict", None)
    return to_dict() if to_dict is not None else asdict(features)
