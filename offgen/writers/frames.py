"""Files of checksummed frames: what was appended whole is found again, what was torn is recognised and cut.

A frame is a 64-byte head (magic, length, crc32 over length and payload) and the payload, padded to 64 bytes so that
Arrow reads it in place from a memory map. Knows nothing of what a payload says.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

ALIGNMENT = 64
_HEAD = struct.Struct("<8sQI44x")
_MAGIC = b"OFFGEN\x01\n"
_LENGTH = struct.Struct("<Q")


def frame(payload: bytes | memoryview) -> bytes:
    """`payload` as one frame."""
    length = len(payload)
    head = _HEAD.pack(_MAGIC, length, _checksum(length, payload))
    return b"".join((head, payload, bytes(-length % ALIGNMENT)))


def _checksum(length: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(_LENGTH.pack(length)))


def map_file(path: Path) -> memoryview:
    """The file's bytes without reading them into memory. An absent file is empty."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        return memoryview(b"")


class Frames:
    """The whole frames of a file's bytes, in order; after iteration `valid_size` is where the torn tail begins."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.valid_size = 0

    def __iter__(self) -> Iterator[memoryview]:
        data, position = self._data, 0
        self.valid_size = 0
        while position + ALIGNMENT <= len(data):
            magic, length, checksum = _HEAD.unpack_from(data, position)
            start = position + ALIGNMENT
            end = start + length + -length % ALIGNMENT
            if magic != _MAGIC or end > len(data):
                return
            payload = data[start : start + length]
            if _checksum(length, payload) != checksum:
                return
            position = self.valid_size = end
            yield payload
