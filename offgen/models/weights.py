"""Tensors of a checkpoint by name, read slice by slice from safetensors files. Knows no family and no device.

Nothing but the tensor being read is ever in memory: values go from the mapped file into place, on whatever device that
is, so that a load peaks at what the backend packs. Headers of all files are checked against file sizes before the first
tensor is read.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from offgen.errors import UsageError
from offgen.models.config import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
MAX_HEADER_BYTES = 100_000_000  # as the safetensors library

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


class TensorSource(Protocol):
    """Where a family's builder takes its tensors from: files, random numbers, or nothing but their shapes."""

    def has(self, name: str) -> bool: ...

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
        """The tensor in `dtype` (None: as stored). It counts as used from now on."""
        ...

    def take_into(self, name: str, out: torch.Tensor) -> None:
        """The same, put into `out`, of its shape, on any device and in its dtype. Nothing of it stays on the host."""
        ...

    def take_mapped(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The same as stored, without a copy where the file can be mapped: for tables that are looked up row by row."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # byte offset in the file
    num_bytes: int


class CheckpointFiles:
    """The tensors of a folder. `used` is written by what takes them."""

    def __init__(self, tensors: dict[str, StoredTensor], notes: Iterable[str] = ()) -> None:
        self.tensors = tensors
        self.notes = list(notes)
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
        stored = self._stored(name, shape)
        values: Any = torch.empty(stored.num_bytes, dtype=torch.uint8)
        with stored.path.open("rb", buffering=0) as file:
            file.seek(stored.start)
            _read_into(file, memoryview(values.numpy()), stored.path)
        typed: torch.Tensor = values.view(stored.dtype).view(stored.shape)
        return typed if dtype is None else typed.to(dtype)

    def take_into(self, name: str, out: torch.Tensor) -> None:
        stored = self._stored(name, out.shape)
        values = _mapped(stored, is_read_whole=True)
        out.copy_(self.take(name, out.shape, None) if values is None else values)

    def take_mapped(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        values = _mapped(self._stored(name, shape), is_read_whole=False)
        return self.take(name, shape, None) if values is None else values

    def _stored(self, name: str, shape: Sequence[int]) -> StoredTensor:
        stored = self.tensors[name]
        if stored.shape != tuple(shape):
            raise UsageError(f"{stored.path}: `{name}` has shape {list(stored.shape)}, expected {list(shape)}")
        self.used.add(name)
        return stored


def _mapped(stored: StoredTensor, *, is_read_whole: bool) -> torch.Tensor | None:
    """The tensor where it lies in its file; None where it lies askew, or is empty."""
    if stored.start % stored.dtype.itemsize or stored.num_bytes == 0:
        return None
    with stored.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private: nobody writes through it
    if is_read_whole and hasattr(mapped, "madvise"):
        page = stored.start // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, page, stored.start + stored.num_bytes - page)
    count = stored.num_bytes // stored.dtype.itemsize
    return torch.frombuffer(mapped, dtype=stored.dtype, count=count, offset=stored.start).view(stored.shape)


def _read_into(file: Any, view: memoryview, path: Path) -> None:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise UsageError(f"{path}: ended {len(view) - done} bytes early")
        done += count


def open_checkpoint(folder: Path) -> CheckpointFiles:
    """All tensors of a Hugging Face folder. The index is the truth where there is one; else model.safetensors, else
    whatever *.safetensors there are.

    Raises UsageError for a file or tensor that the index names and the disk lacks, and for a truncated file.
    """
    if (folder / INDEX).is_file():
        return _open_indexed(folder)
    paths = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    paths = [path for path in paths if path.name != "consolidated.safetensors"] or paths
    if not paths:
        raise _no_weights(folder)
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        found = read_header(path)
        twice = sorted(tensors.keys() & found.keys())
        if twice:
            raise UsageError(
                f"{path}: `{twice[0]}` is also in {tensors[twice[0]].path.name}, and no index says which holds",
                hint=f"{INDEX} is missing in {folder}",
            )
        tensors.update(found)
    return CheckpointFiles(tensors)


def _open_indexed(folder: Path) -> CheckpointFiles:
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{index}: no `weight_map`")
    names = sorted(set(weight_map.values()))
    lost = [name for name in names if not (folder / name).is_file()]
    if lost:
        raise UsageError(
            f"{folder}: {len(lost)} of {len(names)} weight files of {INDEX} are missing: {', '.join(lost[:5])}",
            hint="the download may be incomplete",
        )
    headers = {name: read_header(folder / name) for name in names}
    absent = [name for name, file in weight_map.items() if name not in headers[file]]
    if absent:
        raise UsageError(
            f"{folder / weight_map[absent[0]]}: `{absent[0]}` is missing, though {INDEX} places it there"
            + (f" (and {len(absent) - 1} more)" if len(absent) > 1 else "")
        )
    notes = []
    for file, header in headers.items():
        strays = sorted(name for name in header if weight_map.get(name) != file)
        if strays:
            notes.append(
                f"{file}: {len(strays)} tensors that {INDEX} does not place there are ignored, e.g. `{strays[0]}`"
            )
    stray_files = sorted({path.name for path in folder.glob("model*.safetensors")} - set(names))
    if stray_files:
        notes.append(f"weight files that {INDEX} does not name are ignored: {', '.join(stray_files[:5])}")
    return CheckpointFiles({name: headers[file][name] for name, file in weight_map.items()}, notes)


def _no_weights(folder: Path) -> UsageError:
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        return UsageError(
            f"{folder}: weights only as pickle ({pickles[0]}), which can run code; offgen reads safetensors",
            hint="convert it once with transformers: model.save_pretrained(folder)",
        )
    return UsageError(f"{folder}: no {SINGLE} and no {INDEX}", hint="or --load-format dummy for random weights")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, checked against its size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
        if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise UsageError(
                f"{path}: not a whole safetensors file ({size} bytes)", hint="the download may be incomplete"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise UsageError(f"{path}: its safetensors header is broken") from None
    data = 8 + length
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        if entry["dtype"] not in DTYPES:
            raise UsageError(f"{path}: `{name}` has dtype {entry['dtype']}, which is not supported")
        stored = StoredTensor(path, DTYPES[entry["dtype"]], tuple(entry["shape"]), data + first, last - first)
        elements = 1
        for side in stored.shape:
            elements *= side
        if elements * stored.dtype.itemsize != stored.num_bytes:
            raise UsageError(f"{path}: `{name}` does not have the bytes of its shape")
        if data + last > size:
            raise UsageError(
                f"{path}: truncated: {size} bytes, its header asks for {data + last}",
                hint="the download may be incomplete",
            )
        tensors[name] = stored
    return tensors
