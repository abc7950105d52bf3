"""Bytes of a file, wherever it lies and however it is compressed. Knows paths and codecs; knows no record."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

_CHUNK_BYTES = 1 << 20
_COMPRESSED_CHUNK_BYTES = 1 << 16  # compressed text can be a thousand times smaller than what comes out
_HASH_ALL_BYTES = 256 << 20  # files up to this size are hashed whole
_HASH_SAMPLES = 64  # of larger ones the head, the tail and this many spread blocks of 64 KiB

COMPRESSIONS = (".gz", ".bz2", ".zst", ".xz")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a file lies. `name` is what the user wrote; `filesystem` is None for a local path, else an fsspec one."""

    name: str
    path: str
    filesystem: Any = None

    def open(self) -> BinaryIO:
        if self.filesystem is None:
            return Path(self.path).open("rb")
        return cast(BinaryIO, self.filesystem.open(self.path, "rb"))

    def num_bytes(self) -> int:
        if self.filesystem is None:
            return Path(self.path).stat().st_size
        return int(self.filesystem.size(self.path))

    def fingerprint(self) -> dict[str, Any]:
        """Size and a hash of the content: all of it up to 256 MiB, head, tail and spread samples beyond."""
        size = self.num_bytes()
        digest = hashlib.blake2b(digest_size=16)
        with self.open() as file:
            if size <= _HASH_ALL_BYTES:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
            else:
                for i in range(_HASH_SAMPLES + 1):
                    file.seek((size - _COMPRESSED_CHUNK_BYTES) * i // _HASH_SAMPLES)
                    digest.update(file.read(_COMPRESSED_CHUNK_BYTES))
        return {"file": self.path.replace("\\", "/").rsplit("/", 1)[-1], "bytes": size, "hash": digest.hexdigest()}

    def chunks(self, compression: str = "") -> Iterator[bytes]:
        """The content, decompressed. EOFError if it ends within a compressed member or is shorter than when opened."""
        with self.open() as file:
            if compression:
                yield from _decompressed(_chunks_of(file, _COMPRESSED_CHUNK_BYTES), _DECODERS[compression])
            else:
                yield from _whole(file, self.num_bytes())


def _chunks_of(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    while chunk := file.read(num_bytes):
        yield chunk


def _whole(file: BinaryIO, size: int) -> Iterator[bytes]:
    left = size  # what is appended meanwhile is not part of this job
    while left > 0:
        chunk = file.read(min(_CHUNK_BYTES, left))
        if not chunk:
            raise EOFError(f"the file was cut from {size} to {size - left} bytes meanwhile")
        left -= len(chunk)
        yield chunk


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _decompressed(chunks: Iterator[bytes], make: Callable[[], _Decoder]) -> Iterator[bytes]:
    """Concatenated members, as gzip, bzip2, xz and zstd allow; zero bytes between and after them are padding."""
    decoder: _Decoder | None = None
    for chunk in chunks:
        data = chunk
        while data:
            if decoder is None:
                data = data.lstrip(b"\0")
                if not data:
                    break
                decoder = make()
            try:
                out = decoder.decompress(data)
            except (zlib.error, lzma.LZMAError, OSError) as problem:
                raise ValueError(f"broken compressed data: {problem}") from problem
            if out:
                yield out
            data = decoder.unused_data if decoder.eof else b""
            if decoder.eof:
                decoder = None
    if decoder is not None:
        raise EOFError("the compressed file is cut off")


def _gzip_decoder() -> _Decoder:
    return zlib.decompressobj(wbits=31)


def _zstd_decoder() -> _Decoder:
    import zstandard

    class Decoder:
        """zstandard's own, with its error as the ValueError that this file speaks of."""

        def __init__(self) -> None:
            self._object = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

        @property
        def eof(self) -> bool:
            return bool(self._object.eof)

        @property
        def unused_data(self) -> bytes:
            return bytes(self._object.unused_data)

        def decompress(self, data: bytes, /) -> bytes:
            try:
                return bytes(self._object.decompress(data))
            except zstandard.ZstdError as problem:
                raise ValueError(f"broken compressed data: {problem}") from problem

    return Decoder()


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    ".gz": _gzip_decoder,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": _zstd_decoder,
}
